"""Which tokenizer a run has, and what is refused about it; test_settings has the other checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from data.chat import ConversationEncoder, Overlong
from data.formats import Parser
from data.targets import LossOn
from data.tokenizers import ByteTokenizer
from sft.checks import Derived, check
from sft.config import RunConfig, resolve
from sft.encoder import build_encoder
from sft.errors import ConfigError
from tests.conftest import CONF_DIR
from tests.data import toys


def settle(*overrides: str) -> tuple[RunConfig, Derived]:
    with initialize_config_dir(CONF_DIR, version_base="1.3"):
        config = resolve(compose("config", ["run_dir=runs/test", *overrides]))
    return config, check(config)


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        settle(*overrides)
    return str(caught.value)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A directory with a model's configuration and its tokenizer."""
    path = toys.save_tokenizer(tmp_path / "model", toys.CHATML)
    config = {
        "model_type": "llama",
        "vocab_size": 400,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
    }
    Path(path, "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def test_bytes_where_nothing_else_is_said() -> None:
    assert settle()[1].tokenizer == ByteTokenizer()
    assert settle("data.tokenizer=bytes")[1].tokenizer == ByteTokenizer()


def test_the_tokenizer_of_the_model_that_weights_come_from(model: str, tmp_path: Path) -> None:
    start = ["model=hf", f"model.init_from={model}"]
    assert settle(*start)[1].tokenizer.name == model
    assert settle(*start, "data.tokenizer=bytes")[1].tokenizer == ByteTokenizer()
    other = toys.save_tokenizer(tmp_path / "other", toys.LLAMA3)
    assert settle(*start, f"data.tokenizer={other}")[1].tokenizer.name == other


def test_a_model_without_a_tokenizer_is_refused_by_the_key_that_named_it(model: str) -> None:
    for path in Path(model).iterdir():
        if path.name != "config.json":
            path.unlink()
    told = refusal("model=hf", f"model.init_from={model}")
    assert told.startswith(f"model.init_from={model}: no tokenizer can be loaded from there (")
    assert "set data.tokenizer to a directory" in told


def test_a_tokenizer_that_the_model_has_no_room_for(model: str) -> None:
    needed = len(toys.theirs(model))
    assert refusal(f"data.tokenizer={model}", "model.vocab_size=100") == (
        f"model.vocab_size=100: the tokenizer needs {needed} (data.tokenizer={model}); use that "
        "many or more, or null"
    )
    config = json.loads(Path(model, "config.json").read_text(encoding="utf-8"))
    Path(model, "config.json").write_text(json.dumps({**config, "vocab_size": 99}))
    assert refusal("model=hf", f"model.init_from={model}") == (
        f"model.init_from={model}: its tokenizer has {needed} ids, and its embedding only 99 rows; "
        "set data.tokenizer to one of at most 99 ids"
    )
    assert refusal("model=hf", f"model.init_from={model}", "data.tokenizer=bytes") == (
        f"data.tokenizer=bytes: has 262 ids, and the model in model.init_from={model} only 99 rows "
        "in its embedding; use data.tokenizer=null, which is the model's own"
    )


def test_a_template_needs_a_tokenizer_and_a_file(model: str) -> None:
    assert refusal("data.chat_template=own.jinja").startswith(
        "data.chat_template=own.jinja: the tokenizer data.tokenizer=bytes has a layout of its own"
    )
    assert refusal(f"data.tokenizer={model}", "data.chat_template=/no/own.jinja") == (
        "data.chat_template=/no/own.jinja: cannot be read (No such file or directory); set it to a "
        "Jinja file, or to null for the tokenizer's own template"
    )


def test_one_tokenizer_for_many_jobs(model: str) -> None:
    first, second = (settle(f"data.tokenizer={model}", f"seed={seed}")[1] for seed in (1, 2))
    assert first.tokenizer is second.tokenizer


def test_the_encoder_is_as_set(model: str) -> None:
    config, derived = settle(
        "data=jsonl", "data.path=x.jsonl", f"data.tokenizer={model}", "data.loss_on=last",
        "data.overlong=drop", "data.format=alpaca", "data.columns={instruction: question}",
        "packing.capacity=64", "train.global_batch_tokens=64",
    )  # fmt: skip
    assert build_encoder(config, derived) == ConversationEncoder(
        parser=Parser("alpaca", {"instruction": "question"}),
        tokenizer=derived.tokenizer,
        capacity=64,
        overlong=Overlong.DROP,
        loss_on=LossOn.LAST,
    )


def test_template_arguments_come_from_the_settings(tmp_path: Path) -> None:
    path = toys.save_tokenizer(tmp_path, toys.THINKING)
    words = [f"data.tokenizer={path}", "data.template_args={enable_thinking: false}"]
    frame = settle(*words)[1].tokenizer.frame  # type: ignore[attr-defined]
    assert frame.header.endswith("<think>\n\n</think>\n\n")
    assert refusal(f"data.tokenizer={path}", "data.template_args={thinking: false}") == (
        "data.template_args.thinking=false: the chat template reads no such variable; remove it, "
        "or correct its name"
    )
