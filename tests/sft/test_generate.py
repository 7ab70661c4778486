"""Asking an exported model: what it needs, and what it says when that is not there."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sft.errors import ConfigError
from sft.generate import answer, main
from tests.data import toys
from tests.models.hf import tiny


def refusal(model: Path, **settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        answer(model, "Hello?", **settings)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What sft.export leaves, made by transformers alone."""
    path = tmp_path_factory.mktemp("exported") / "out"
    tiny.make("llama", path, vocab_size=400)
    toys.save_tokenizer(path, toys.GEMMA)
    return path


def test_what_is_no_exported_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "Hello?"]) == 2
    assert capsys.readouterr().err == (
        f"stowage: {tmp_path}: is no exported model; python -m sft.export RUN {tmp_path} writes "
        "one\n"
    )
    (tmp_path / "config.json").touch()
    assert refusal(tmp_path) == (
        f"{tmp_path}: holds no tokenizer, so there is no way to ask it in words; export a run "
        "whose data.tokenizer is not bytes"
    )
    assert "cannot be read (File name too long)" in refusal(Path("x" * 300))
    with pytest.raises(ConfigError, match=r"^--max-new-tokens=0: must be at least 1"):
        answer(tmp_path, "Hello?", max_new_tokens=0)


def _damage_weights(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"no weights")


def _damage_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text("{", encoding="utf-8")


def _drop_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def _drop_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink()


def _leave_an_adapter(model: Path) -> None:
    (model / "config.json").unlink()
    config = {"peft_type": "LORA", "base_model_name_or_path": str(model / "gone")}
    (model / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_damage_weights, ("cannot be loaded (", "; export it again")),
        (_damage_tokenizer, ("cannot be loaded (", "; export it again")),
        (_drop_weights, ("cannot be loaded (", "; export it again")),
        (_drop_template, ("its tokenizer has no chat template; set data.chat_template", "")),
        (_leave_an_adapter, ("cannot be loaded (", "; the model that it is for must be where it "
                             "was in training, or export without --adapter")),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(
    exported: Path, tmp_path: Path, change: Callable[[Path], None], told: tuple[str, str]
) -> None:
    model = tmp_path / "out"
    shutil.copytree(exported, model)
    change(model)
    said = refusal(model)
    assert said.startswith(f"{model}: {told[0]}") and said.endswith(told[1])
    assert "\n" not in said


def test_an_adapter_needs_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("adapter_config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "peft", None)  # as where it is not installed
    assert refusal(tmp_path) == (
        f"{tmp_path}: is an adapter, and the package peft is not there to load it; install that, "
        "or export without --adapter"
    )


def test_a_template_that_has_no_place_for_the_system(exported: Path) -> None:
    assert refusal(exported, system="Be brief.") == (
        f"{exported}: its chat template refuses the question (System role not supported); leave "
        "out --system if it has no place for that"
    )
    answer(exported, "Hello?", max_new_tokens=1)
