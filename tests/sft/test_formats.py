"""The same chats in every format and kind of file train to the same loss, bit for bit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.chat import ConversationEncoder
from data.formats import Parser, known_formats
from data.sample import Sample
from data.tokenizers import load_tokenizer
from tests.conftest import read_metrics
from tests.data.files.stores import write

RunApp = Callable[..., Any]

SETTINGS = (
    "data.val_fraction=0", "packing.capacity=128", "train.global_batch_tokens=256",
    "train.steps=null", "train.epochs=2", "seed=5", "model.num_layers=1",
    "train.threads=1",
)  # fmt: skip
FILES = {
    "messages": "c.jsonl",
    "sharegpt": "c.json",
    "alpaca": "c.parquet",
    "prompt_completion": "c.jsonl.gz",
    "tokens": "c.jsonl.zst",
}


def pairs() -> list[tuple[str, str]]:
    r = random.Random(0)
    return [("q" * r.randrange(1, 30), "ä" * r.randrange(1, 30)) for _ in range(16)]


def as_messages(question: str, answer: str) -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns}


def as_tokens(question: str, answer: str) -> dict[str, Any]:
    encode = ConversationEncoder(Parser(), load_tokenizer("bytes"), 128)
    sample = encode(json.dumps(as_messages(question, answer)).encode(), "")
    assert isinstance(sample, Sample)
    labels = [t if on else -100 for t, on in zip(sample.tokens, sample.targets, strict=True)]
    return {"input_ids": sample.tokens.tolist(), "labels": [int(label) for label in labels]}


WAYS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "messages": as_messages,
    "sharegpt": lambda q, a: {
        "conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]
    },
    "alpaca": lambda q, a: {"instruction": q, "input": "", "output": a},
    "prompt_completion": lambda q, a: {"prompt": q, "completion": a},
    "tokens": as_tokens,
}


def losses(run_app: RunApp, *overrides: str) -> list[float]:
    run_dir = run_app(*SETTINGS, *overrides).run_dir
    found = [record["loss"] for record in read_metrics(run_dir)]
    assert len(found) > 2
    return found


@pytest.mark.slow
def test_every_format_trains_to_the_same_loss(run_app: RunApp, tmp_path: Path) -> None:
    assert set(WAYS) == set(known_formats())
    cache = f"data.cache_dir={tmp_path / 'cache'}"
    found = {}
    for name, way in WAYS.items():
        path = write(tmp_path / name / FILES[name], [way(q, a) for q, a in pairs()])
        found[name] = losses(run_app, "data=files", f"data.path={path}", cache)
    for name in WAYS:
        assert found[name] == found["messages"], name


@pytest.mark.parametrize("packing", ["loader", "trainer"])
def test_weights_are_repeated_conversations(run_app: RunApp, tmp_path: Path, packing: str) -> None:
    """A weight of two in the order of the files is the file written out twice."""
    records = [as_messages(q, a) for q, a in pairs()]
    once, twice = tmp_path / "once.jsonl", tmp_path / "twice.jsonl"
    rest = write(tmp_path / "rest.jsonl", records[8:])
    write(once, records[:8])
    write(twice, [*records[:8], *records[:8], *records[8:]])
    common = ("data.shuffle=false", f"packing={packing}")
    weighted = losses(
        run_app, "data=mixture", f"data.sets=[{{path: {once}, weight: 2}}, {rest}]", *common
    )
    assert weighted == losses(run_app, "data=files", f"data.path={twice}", *common)
