"""What a run records of its steps: by hand on built microbatches, and added up over runs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.thd import build_rectangle, build_row
from models.shapes import GPTShape
from sft import metrics
from sft.flops import TrainingFlops
from sft.metrics import Counts, Histograms, Speed, attention_imbalance
from sft.summary import _flops_row
from sft.yardstick import Yardstick, device_peak
from tests.conftest import make_sample, read_metrics

FLOPS = TrainingFlops(per_token=10, per_squared_token=2, per_loss_token=100)


def row(*lengths: int, width: int | None = None) -> Any:
    return build_row([make_sample(n) for n in lengths], width=width, pad_multiple=4)


def test_lengths_are_the_real_ones() -> None:
    assert row(5, 10, width=36).lengths == (5, 10)
    assert build_rectangle([make_sample(3), make_sample(9)], pad_multiple=4).lengths == (3, 9)


def test_counts_of_a_step() -> None:
    microbatches = [row(5, 10, width=36), build_rectangle([make_sample(3), make_sample(7)])]
    counts = Counts.of(microbatches)
    assert counts.squared_length_sum == 25 + 100 + 9 + 49
    assert (counts + counts).squared_length_sum == 2 * 183
    expected = 10 * (5 + 10 + 3 + 7) + 2 * 183 + 100 * counts.loss_tokens
    assert counts.loss_tokens > 0
    assert counts.model_flops(FLOPS) == expected


def test_attention_imbalance() -> None:
    assert attention_imbalance([row(6), row(6)]) == 0
    # 36 and 4 + 4 = 8: 36 over the mean of 22.
    assert attention_imbalance([row(6), row(2, 2)]) == pytest.approx(36 / 22 - 1)
    assert attention_imbalance([row(3, 3, 3)]) == 0


def test_histograms() -> None:
    histograms = Histograms(capacity=40)
    assert histograms.add([row(1, 1, 39), row(40)]) == pytest.approx(2 * 1600 / (1523 + 1600) - 1)
    histograms.add([row(2)])
    counts = histograms.samples_by_length
    # Bins of one token, from their lower edge; the last one has both edges.
    assert (counts[1], counts[2], counts[39]) == (2, 1, 2)
    assert counts.sum() == 5
    assert histograms.microbatches_by_samples == Counter({1: 2, 3: 1})
    assert histograms.bin_edges.tolist() == list(range(41))


def test_speed_against_the_peak() -> None:
    counts = Counts(real_tokens=100, squared_length_sum=50, loss_tokens=10)
    yardstick = Yardstick(flops=FLOPS, peak_flops_per_s=4200.0, started=0.0)
    assert yardstick.speed(counts, 2.0) == {"model_flops_per_s": 1050.0, "mfu": 0.25}
    unknown = Yardstick(flops=FLOPS, peak_flops_per_s=None, started=0.0)
    assert unknown.speed(counts, 2.0) == {"model_flops_per_s": 1050.0, "mfu": None}
    assert yardstick.speed(counts, 0.0) == {"model_flops_per_s": None, "mfu": None}


def test_the_peak_is_of_the_device_at_the_precision_of_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.Linear(1, 1)
    assert device_peak(torch.device("cpu"), model) is None
    monkeypatch.setattr(metrics.torch.cuda, "get_device_name", lambda _device: "NVIDIA H200")
    assert device_peak(torch.device("cuda"), model) == 494.5e12
    assert device_peak(torch.device("cuda"), model.bfloat16()) == 989.5e12


def test_an_unknown_peak_is_said() -> None:
    summary = {"model_flops_per_s": 2.5e12, "mfu": None, "peak_flops_per_s": None}
    assert _flops_row(summary).startswith("2.5 TFLOP/s; MFU unknown")
    known = {"model_flops_per_s": 247.25e12, "mfu": 0.5, "peak_flops_per_s": 494.5e12}
    assert _flops_row(known) == "247.2 TFLOP/s, MFU 50.0% of 494.5"


def test_no_step_is_timed_before_the_first_ones_are_over() -> None:
    speed = Speed(skip_steps=2)
    assert Yardstick(flops=FLOPS, peak_flops_per_s=None, started=0.0).speed(
        speed.timed, speed.timed_seconds
    ) == {"model_flops_per_s": None, "mfu": None}


@pytest.mark.parametrize("mode", ["none", "trainer", "loader"])
def test_a_run_records_its_work(
    run_app: Callable[..., Any], write_chats: Callable[..., Path], mode: str
) -> None:
    answers = [9 * i % 90 + 1 for i in range(20)]
    path = write_chats(answers)
    result = run_app(
        "data=jsonl", f"data.path={path}", "data.val_fraction=0.2", f"packing={mode}",
        "packing.capacity=128", "train.global_batch_tokens=256", "train.steps=null",
        "train.epochs=1", "train.speed_skip_steps=1", "train.eval_every=2",
    )  # fmt: skip
    steps, vals = read_metrics(result.run_dir), read_metrics(result.run_dir, "val")
    summary = json.loads((result.run_dir / "summary.json").read_text(encoding="utf-8"))
    run = json.loads((result.run_dir / "run.json").read_text(encoding="utf-8"))
    assert datetime.fromisoformat(run["started_at"]).utcoffset() is not None
    config = run["config"]["model"]
    shape = GPTShape(**{k: v for k, v in config.items() if k != "_target_"})
    flops = TrainingFlops.of(shape, 262)
    for m in steps:
        assert m["model_flops"] == flops.count(
            tokens=m["real_tokens"],
            squared_lengths=m["squared_length_sum"],
            loss_tokens=m["loss_tokens"],
        )
        assert math.isclose(m["model_flops_per_s"], m["model_flops"] / m["step_seconds"])
        assert m["mfu"] is None
        assert m["attention_imbalance"] >= 0
    for a, b in pairwise(steps):
        assert b["wall_seconds"] >= a["wall_seconds"] + b["step_seconds"]
    assert vals[0]["wall_seconds"] < steps[0]["wall_seconds"]
    assert vals[-1]["wall_seconds"] > steps[-1]["wall_seconds"]
    assert vals[-1]["wall_seconds"] <= summary["wall_seconds"]

    assert summary["squared_length_sum"] == sum(m["squared_length_sum"] for m in steps)
    mean = sum(m["attention_imbalance"] for m in steps) / len(steps)
    assert math.isclose(summary["attention_imbalance"], mean, abs_tol=1e-12)
    timed = steps[1:]
    expected = sum(m["model_flops"] for m in timed) / sum(m["step_seconds"] for m in timed)
    assert math.isclose(summary["model_flops_per_s"], expected)
    assert summary["mfu"] is summary["peak_flops_per_s"] is None
    histogram = summary["length_histogram"]
    assert histogram["bin_edges"] == np.linspace(0, 128, 41).tolist()
    assert sum(histogram["counts"]) == summary["samples"] == 16
    segments = summary["segments_histogram"]["counts"]
    assert sum(segments.values()) == summary["microbatches"]
    assert sum(int(n) * c for n, c in segments.items()) == summary["samples"]
    assert math.isclose(summary["samples_per_microbatch"], 16 / summary["microbatches"])
