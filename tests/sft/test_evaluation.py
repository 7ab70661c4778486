"""Validation comes out the same whoever packs it, and nothing of it is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from data.jsonl import Records
from data.packing.microbatches import Microbatch, to_microbatches
from data.packing.settings import PackingMode
from data.sample import Sample
from data.sources.chitchat import ChitchatSource
from data.sources.jsonl import JsonlSource
from data.thd import Rectangle, Row
from models.gpt import KernelPath
from sft.build import build_trainee
from sft.evaluation import evaluation_packing
from sft.feed import Feed
from sft.parallel import parallel_session
from sft.step import StepRunner
from sft.validate import Validation, evaluation_feed, validate
from tests.sft.test_config import changed, composed, refusal, settle
from tests.sft.test_lora import SMALL

TOLERANCE = 1e-6  # relative, fp32
BASE = (*SMALL, "packing.capacity=256", "train.global_batch_tokens=1024", "data.num_workers=0")


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    config, derived = settle(*BASE)
    with parallel_session(seed=7, threads=None):
        yield build_trainee(
            config,
            tokenizer_vocab_size=derived.tokenizer.vocab_size,
            kernels=KernelPath.TORCH,
            steps=1,
        ).chunks[0]


@pytest.fixture(scope="module")
def records(chitchat_dir: Path) -> Records:
    """Some real conversations."""
    return ChitchatSource(cache_dir=str(chitchat_dir), limit=160, val_fraction=0.1).prepare().val


def feed_of(*settings: str) -> Feed:
    return Feed.of(*settle(*BASE, *settings))


def validation(model: Any, records: Records, *settings: str) -> Validation:
    feed = feed_of(*settings)
    runner = StepRunner(
        chunks=[model],
        device=torch.device("cpu"),
        average=feed.config.loss.average,
        real_boundaries=feed.config.packing.real_boundaries,
    )
    return validate(runner, feed, records)


def samples_of(records: Records) -> list[Sample]:
    encode = feed_of().encode
    outcomes = [encode(records.read(i), records.source_id(i)) for i in range(len(records))]
    return [outcome for outcome in outcomes if isinstance(outcome, Sample)]


@pytest.fixture(scope="module")
def alone(model: Any, records: Records) -> Validation:
    """Each conversation by itself: nothing is packed or padded."""
    return validation(
        model, records, "packing.mode=none", "train.micro_batch_size=1", "packing.pad_multiple=1"
    )


def test_alone_every_conversation_is_read(alone: Validation, records: Records) -> None:
    samples = samples_of(records)
    assert len(samples) > 10
    assert alone.accounting.read == len(records)
    assert alone.loss_tokens == sum(s.loss_tokens for s in samples) > 0


def assert_same(got: Validation, want: Validation) -> None:
    assert math.isclose(got.loss, want.loss, rel_tol=TOLERANCE)
    assert got.loss_tokens == want.loss_tokens
    assert got.accounting.read == want.accounting.read


@pytest.mark.parametrize("evaluation", ["null", "none", "trainer", "loader"])
@pytest.mark.parametrize("training", ["none", "trainer", "loader"])
def test_whoever_packs(
    model: Any, records: Records, alone: Validation, training: str, evaluation: str
) -> None:
    # Cases D17 and F21.
    settings = (f"packing.mode={training}", f"eval.packing={evaluation}")
    assert_same(validation(model, records, *settings), alone)


BY_SAMPLES = ("train.global_batch_tokens=null", "train.global_batch_samples=3")
BY_REAL_TOKENS = ("train.global_batch_tokens=null", "train.global_batch_real_tokens=400")


@pytest.mark.parametrize(
    "settings",
    [
        ("packing.mode=none", *BY_SAMPLES, "eval.packing=loader"),
        ("packing.mode=trainer", *BY_REAL_TOKENS, "eval.packing=loader"),
        ("packing.mode=loader", *BY_REAL_TOKENS, "eval.packing=none"),
        ("packing.mode=loader", "packing.buffer_size=7", "eval.packing=trainer"),
        ("packing.mode=trainer", "packing.kernel_boundaries=padded", "eval.packing=none"),
        ("packing.mode=trainer", "packing.pad_multiple=8", "eval.packing=loader"),
        ("packing.mode=trainer", "loss.average=sample"),
    ],
    ids=" ".join,
)
def test_whatever_else_training_is_told(
    model: Any, records: Records, alone: Validation, settings: tuple[str, ...]
) -> None:
    assert_same(validation(model, records, *settings), alone)


def microbatches(records: Records, *settings: str) -> list[list[Microbatch]]:
    feed = evaluation_feed(feed_of(*settings))
    with feed.validation_stream(records) as stream:
        batches = [feed.batch(stream, step, feed.deal(step)) for step in feed.steps(stream)]
    return [to_microbatches(batch, feed.layout) for batch in batches]


@pytest.mark.parametrize("training", ["none", "trainer", "loader"])
@pytest.mark.parametrize("evaluation", ["null", "none", "trainer", "loader"])
def test_it_is_packed_as_it_says(records: Records, training: str, evaluation: str) -> None:
    steps = microbatches(records, f"packing.mode={training}", f"eval.packing={evaluation}")
    kind = training if evaluation == "null" else evaluation
    flat = [microbatch for step in steps for microbatch in step]
    assert all(isinstance(m, Rectangle if kind == "none" else Row) for m in flat)
    for row in flat:
        if isinstance(row, Row):
            # The loader's rows are as wide as the capacity, the trainer's as their samples need.
            width = 256 if kind == "loader" else int(row.cu_seqlens[-1])
            assert row.tokens.shape[1] == width
    ids = [i for m in flat for i in m.source_ids]
    assert sorted(ids) == sorted(s.source_id for s in samples_of(records))


def test_boundaries_are_those_of_who_packs() -> None:
    def real(*settings: str) -> bool:
        return evaluation_packing(settle(*BASE, *settings)[0]).real_boundaries

    assert real("packing.mode=loader", "eval.packing=trainer")
    assert not real("packing.mode=trainer", "eval.packing=loader")
    assert not real(
        "packing.mode=loader", "packing.kernel_boundaries=padded", "eval.packing=trainer"
    )


@pytest.mark.parametrize("training", ["none", "trainer", "loader"])
def test_three_conversations_in_rectangles_of_four(
    model: Any, write_chats: Callable[..., Path], training: str
) -> None:
    # Case F20: fewer conversations than a rectangle holds, and one left over.
    for answers in ([5, 60, 9], [5, 60, 9, 30, 31]):
        path = write_chats(answers, name=f"{len(answers)}.jsonl")
        training_file = write_chats([1, 1])
        records = JsonlSource(path=str(training_file), val_path=str(path)).prepare().val
        got = validation(
            model,
            records,
            f"packing.mode={training}",
            "eval.packing=none",
            "eval.micro_batch_size=4",
        )
        assert got.accounting.read == len(answers)
        assert got.loss_tokens == sum(s.loss_tokens for s in samples_of(records))


def test_conversations_per_rectangle(records: Records) -> None:
    def sizes(*settings: str) -> list[list[int]]:
        steps = microbatches(records, "train.global_batch_tokens=null", *settings)
        return [[m.tokens.shape[0] for m in step] for step in steps]

    none = ("packing.mode=none", "train.global_batch_samples=8")
    assert set(map(tuple, sizes(*none)[:-1])) == {(4, 4)}
    assert set(map(tuple, sizes(*none, "train.micro_batch_size=2")[:-1])) == {(2, 2, 2, 2)}
    both = ("train.micro_batch_size=2", "eval.micro_batch_size=8")
    assert set(map(tuple, sizes(*none, *both)[:-1])) == {(8,)}
    packed = ("packing.mode=trainer", "train.global_batch_samples=8", "eval.packing=none")
    assert set(map(tuple, sizes(*packed)[:-1])) == {(4, 4)}
    assert set(map(tuple, sizes(*packed, "eval.micro_batch_size=3")[:-1])) == {(3, 3, 2)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["eval.packing=both"], "eval.packing=both: must be one of none, trainer, loader or null"),
        (["eval.micro_batch_size=0"], "eval.micro_batch_size=0: must be at least 1"),
        (
            ["packing.mode=loader", "eval.micro_batch_size=2"],
            "eval.micro_batch_size=2: a packed row is its own microbatch, and validation is packed "
            "(packing.mode=loader); remove it, or use eval.packing=none",
        ),
        (
            ["packing.mode=none", "eval.packing=trainer", "eval.micro_batch_size=2"],
            "eval.micro_batch_size=2: a packed row is its own microbatch, and validation is packed "
            "(eval.packing=trainer); remove it, or use eval.packing=none",
        ),
    ],
)
def test_refused(settings: list[str], message: str) -> None:
    assert refusal(changed(*settings)) == message


def test_a_key_that_is_not_there() -> None:
    assert refusal(composed("+eval.packer=ffd")) == (
        "eval.packer=ffd: there is no such key. Did you mean eval.packing? Keys in eval: "
        "micro_batch_size, packing"
    )


def test_the_advice_holds() -> None:
    config, _ = settle("packing.mode=loader", "eval.micro_batch_size=2", "eval.packing=none")
    assert evaluation_packing(config).mode is PackingMode.NONE
