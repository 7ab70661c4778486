"""Which checkpoint a path names, and what its description must have; test_export loads some."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sft.checkpoint import find_checkpoint, read_description
from sft.errors import ConfigError
from sft.export import export
from tests.sft.test_export import BYTES, SMALL


def test_the_last_checkpoint_is_no_copy_of_one(tmp_path: Path) -> None:
    for name in ("step-9", "step-10", "step-10-backup", "step-last"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "checkpoint.json").touch()
    assert find_checkpoint(tmp_path).name == "step-10"


def test_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    with pytest.raises(ConfigError, match="has left no checkpoint, and has not come to its end"):
        find_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match=r": cannot be read \(File name too long\); name a dir"):
        find_checkpoint(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("content", "lacking"),
    [
        ("[]", "format, tokenizer_vocab_size, config.model, config.lora"),
        ('{"format": 1, "tokenizer_vocab_size": "9", "config": {"model": {}, "lora": null}}',
         "tokenizer_vocab_size, config.lora"),
    ],
)  # fmt: skip
def test_a_description_that_lacks_something(tmp_path: Path, content: str, lacking: str) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_description(tmp_path)
    assert str(caught.value) == (
        f"{path}: lacks {lacking}, so it is damaged; take another of the run's checkpoints"
    )


def test_what_a_checkpoint_says(
    run_app: Callable[..., Any], write_chats: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_chats([3, 9])
    run_dir = run_app(*SMALL, f"data.path={path}", "train.steps=1", "train.save_every=0").run_dir
    checkpoint = find_checkpoint(run_dir)
    assert checkpoint == find_checkpoint(checkpoint) == run_dir / "checkpoints" / "step-1"
    description = read_description(checkpoint)
    assert description["step"] == 1
    assert description["tokenizer_vocab_size"] == BYTES
    assert description["config"]["model"]["num_layers"] == 2
    run = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    assert description["config"] == run["config"]
    # It needs nothing of the run.
    shutil.move(checkpoint, tmp_path / "moved")
    shutil.rmtree(run_dir)
    export(tmp_path / "moved", tmp_path / "out")
    weights = tmp_path / "moved" / "weights"
    (weights / "__0_0.distcp").unlink()
    with pytest.raises(ConfigError, match=r"moved: its weights are missing or damaged \(cannot be"):
        export(tmp_path / "moved", tmp_path / "again")
    (weights / "metadata.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"moved: its weights are missing or damaged \(cannot be"):
        export(tmp_path / "moved", tmp_path / "again")
    (tmp_path / "moved" / "hf" / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"hf/config\.json: cannot be read \(No such file"):
        export(tmp_path / "moved", tmp_path / "again")
    (tmp_path / "moved" / "checkpoint.json").write_text('{"format": 3}', encoding="utf-8")
    with pytest.raises(ConfigError, match="has format 3, and this version reads 1 and 2"):
        export(tmp_path / "moved", tmp_path / "again")
    (tmp_path / "moved" / "checkpoint.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"checkpoint\.json: cannot be read"):
        export(tmp_path / "moved", tmp_path / "again")
