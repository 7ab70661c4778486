"""The numbers of a choice: those of the run that it stands for, and arithmetic by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sft.flops import TrainingFlops
from sft.preview.choice import Shared, preview_choice
from sft.preview.cli import choices_of
from sft.preview.lengths import of_conversations, of_file
from tests.conftest import read_metrics
from tests.sft.preview.conftest import previewed

ANSWERS = [11 * i % 90 + 1 for i in range(14)] + [300, 7, 400]
BY_REAL_TOKENS = ("train.global_batch_tokens=null", "train.global_batch_real_tokens=200")
SMALL = ("packing.capacity=128", "train.global_batch_tokens=256")


@pytest.mark.parametrize(
    "overrides",
    [
        ("packing=none", "train.micro_batch_size=3", "train.epochs=2"),
        ("packing=trainer", "packer=bfd", "packing.pad_multiple=8", "data.overlong=drop",
         "train.epochs=1"),
        # Windows of 8, one of them across the epochs, and too small for the bins asked for.
        ("packing=loader", "packing.buffer_size=8", "packer.bins_multiple=5", "train.epochs=2"),
        ("packing=none", "train.epochs=2", *BY_REAL_TOKENS),
        ("packing=trainer", "train.epochs=1", *BY_REAL_TOKENS),
        ("packing=loader", "packer=concatenative", "train.epochs=2", *BY_REAL_TOKENS),
    ],
    ids=["none", "trainer", "loader", "none even", "trainer even", "loader even"],
)  # fmt: skip
def test_it_agrees_with_what_a_run_then_does(
    run_app: Callable[..., Any], write_chats: Callable[..., Path], overrides: tuple[str, ...]
) -> None:
    path = write_chats(ANSWERS, extra=["{broken"])
    words = (
        "data=jsonl", f"data.path={path}", "data.val_fraction=0", "data.num_workers=0", *SMALL,
        "train.steps=null", *overrides,
    )  # fmt: skip
    (choice,) = choices_of(words)
    lengths = of_conversations(choice.config, choice.derived)
    outcome = preview_choice(choice, Shared(lengths=lengths), ranks=2, seconds=math.inf)
    said, rows = outcome.content, outcome.rows
    result = run_app(*words)
    steps, summary = read_metrics(result.run_dir), result.summary
    samples = json.loads((result.run_dir / "samples.json").read_text(encoding="utf-8"))["train"]

    for name, values in (
        ("slot_tokens", rows.slot_tokens),
        ("real_tokens", rows.real_tokens),
        ("samples", rows.samples),
        ("microbatches", np.ones_like(rows.samples)),
        ("squared_length_sum", rows.squared_lengths),
    ):
        assert rows.per_step(values).tolist() == [m[name] for m in steps]
    assert said["steps"] == summary["steps"] == len(steps) > 2
    assert said["per_step"]["slot_tokens"]["mean"] == summary["slot_tokens"] / len(steps)
    assert said["per_step"]["real_tokens"]["max"] == max(m["real_tokens"] for m in steps)
    assert said["fill"] == summary["fill"]
    assert said["slot_tokens"] == summary["slot_tokens"]
    assert said["attention"]["imbalance_in_step"] == pytest.approx(summary["attention_imbalance"])
    assert said["samples_per_row"]["mean"] == summary["samples_per_microbatch"]
    assert not said["estimated"]
    if choice.packer is not None:
        assert said["rows"] == summary["rows"]
        assert said["fewest_rows"] == summary["fewest_rows"]

    once, epochs = lengths.accounting.to_json(), choice.config.train.epochs
    for name in ("read", "kept", "dropped_total", "truncated_samples", "truncated_tokens",
                 "real_tokens", "loss_tokens"):  # fmt: skip
        assert epochs * once[name] == samples[name]
    assert once["dropped_total"] >= 1
    assert {reason: epochs * n for reason, n in once["dropped"].items()} == samples["dropped"]


def test_flops_by_hand(write_lengths: Callable[..., Path]) -> None:
    # A batch of one is no padding, and nor is the trainer's row: equal work.
    path = write_lengths([100, 60, 40, 100])
    words = ("packing.capacity=100", "train.global_batch_tokens=300", "data.shuffle=false")
    said = previewed("packing=trainer", *words, lengths=path)
    assert said["flops_wasted"] == pytest.approx(0)
    assert said["none"]["fill"] == {"1": 1.0, "4": pytest.approx(300 / 400)}
    assert said["none"]["estimated_speedup"]["1"] == pytest.approx(1)
    # A rectangle of all four: 60 and 40 are padded to 100.
    (choice,) = choices_of(["packing=trainer", *words])
    flops = TrainingFlops.of(choice.config.model, 262)
    computed = flops.count(tokens=400, squared_lengths=4 * 100**2, loss_tokens=300)
    needed = flops.count(tokens=300, squared_lengths=2 * 100**2 + 60**2 + 40**2, loss_tokens=300)
    assert said["none"]["estimated_speedup"]["4"] == pytest.approx(computed / needed)
    itself = previewed("packing=none", *words, lengths=path)
    assert itself["none"]["estimated_speedup"]["4"] == 1
    assert itself["flops_wasted"] == pytest.approx(1 - needed / computed)
    assert itself["rows"] == 1 and itself["waste"] is None


def test_balance(write_lengths: Callable[..., Path]) -> None:
    path = write_lengths([8, 2] * 40)
    words = ("packing=none", "packing.capacity=8", "train.micro_batch_size=1",
             "train.global_batch_tokens=20", "data.shuffle=false")  # fmt: skip
    dealt = previewed(*words, lengths=path, ranks=2)["ranks"]
    # Steps of 8 2 8 2: dealt in turn, one rank has all the long ones.
    assert dealt["rows_per_rank"] == 2
    assert dealt["steps"] == 20
    assert dealt["in_turn"] == pytest.approx(64 / 34 - 1)
    assert dealt["levelled"] == 0
    assert dealt["ordered"] == 0
    assert previewed(*words, lengths=path, ranks=81)["ranks"] is None


def test_a_part_of_the_stream_stands_for_all(write_lengths: Callable[..., Path]) -> None:
    rng = np.random.default_rng(0)
    path = write_lengths(np.clip(rng.lognormal(6, 0.8, 40_000).astype(int), 1, 4096))
    (choice,) = choices_of(["packing=loader", "packer=ffd"])
    shared = Shared(lengths=of_file(path, choice.config))
    whole = preview_choice(choice, shared, ranks=8, seconds=math.inf).content
    part = preview_choice(choice, shared, ranks=8, seconds=0).content
    assert (whole["estimated"], whole["groups_packed"], whole["groups"]) == (False, 157, 157)
    assert (part["estimated"], part["groups_packed"], part["groups"]) == (True, 8, 157)
    for name in ("rows", "fill", "steps", "fewest_rows", "slot_tokens"):
        assert part[name] == pytest.approx(whole[name], rel=0.02)
    assert part["waste"] >= part["least_waste"]
    # A run's last step may be short; the end of a part is no last step.
    assert part["per_step"]["rows"]["min"] == 4
    said, known = (c["none"]["estimated_speedup"]["4"] for c in (part, whole))
    assert said == pytest.approx(known, rel=0.02)


@pytest.mark.parametrize(
    ("lengths", "overrides", "told"),
    [
        (
            [70] * 50,
            ("packing=loader",),
            "rows hold one sample: there is little to pack. 100% of the samples are over",
        ),
        (
            [30] * 50,
            ("packing=loader", "packer.max_samples_per_bin=1"),
            "100% of the rows hold one sample: packer.max_samples_per_bin=1 asks for that",
        ),
        (
            [60, 60, 60, 60] * 9,
            ("packing=trainer", "packer=balanced_greedy_knapsack"),
            "rows hold one sample: balanced_greedy_knapsack makes",
        ),
        ([20] * 50, ("packing=trainer", "packing.pad_multiple=16"), "the pad multiple 16 is near"),
        (
            [60, 41, 27] * 40,
            ("packing=loader", "packing.buffer_size=2"),
            "windows of 2 samples cost 50% more rows than all at once",
        ),
        ([10] * 99, ("packing=loader", "packer.bins_multiple=16"), "needed; larger windows"),
        ([10] * 99, ("packing=trainer", "packer.min_bins=30"), "in 4 of 4 steps there are too few"),
        ([10] * 90 + [200] * 10, ("packing=loader",), "10% of the conversations are over"),
    ],
)
def test_warnings(
    write_lengths: Callable[..., Path], lengths: list[int], overrides: tuple[str, ...], told: str
) -> None:
    words = ("packing.capacity=128", "train.global_batch_tokens=256", *overrides)
    found = previewed(*words, lengths=write_lengths(lengths))["warnings"]
    assert [text for text in found if told in text], found


def test_nothing_to_warn_of(write_lengths: Callable[..., Path]) -> None:
    rng = np.random.default_rng(0)
    path = write_lengths(rng.integers(50, 1500, 5000))
    assert previewed("packing=loader", "packing.buffer_size=2500", lengths=path)["warnings"] == []
