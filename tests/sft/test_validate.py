"""Validation in a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.conftest import read_metrics


def test_a_run_packs_training_and_not_validation(run_app: Callable[..., Any]) -> None:
    # Case F21: the validation loss is there, under its name, and is that of packed validation.
    settings = ("train.steps=2", "packing.capacity=512", "train.global_batch_tokens=1024",
                "data.limit=200")  # fmt: skip
    packed = read_metrics(run_app(*settings).run_dir, "val")
    plain = read_metrics(run_app(*settings, "eval.packing=none").run_dir, "val")
    assert len(packed) == len(plain) == 2
    for a, b in zip(packed, plain, strict=True):
        assert math.isclose(a["val_loss"], b["val_loss"], rel_tol=1e-6)
        assert a["val_loss_tokens"] == b["val_loss_tokens"] > 0
        assert set(a) == set(b)
