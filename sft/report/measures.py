"""What a run comes to, in the figures of the table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sft.report.choices import Choice
from sft.report.collect import Record, Run

# Of a step's time; named here because sft.metrics, which measures them, brings torch along.
PHASES = ("data_wait", "packing", "forward_backward", "optimizer")

Series = tuple[list[float], list[float]]  # x and y of equal length

X_AXES = {
    "real_tokens": "total_real_tokens",
    "wall_seconds": "wall_seconds",
    "steps": "step",
}


@dataclass(frozen=True, kw_only=True)
class Levels:
    """What all finished runs reached, so that they can be compared there.

    Attributes:
        real_tokens: the most that all were validated at or beyond; None without validations.
        val_loss: the lowest that all reached; None where one never got below its start.
    """

    real_tokens: int | None
    val_loss: float | None


def levels(choices: Sequence[Choice]) -> Levels:
    """Find what all finished runs that were validated have in common."""
    series = [val_series(run, "real_tokens") for c in choices for run in c.runs]
    series = [s for s in series if s[0]]
    if not series:
        return Levels(real_tokens=None, val_loss=None)
    loss = max(min(y) for _, y in series)
    learned = all(loss < y[0] for _, y in series)
    return Levels(
        real_tokens=int(min(x[-1] for x, _ in series)), val_loss=loss if learned else None
    )


def measure(run: Run, common: Levels) -> dict[str, float | None]:
    """All figures of one finished run; None for what it did not measure."""
    summary = run.summary or {}
    shares = summary.get("step_time_shares") or {}
    rows, fewest = summary.get("rows"), summary.get("fewest_rows")
    steps, real = summary.get("steps"), summary.get("real_tokens")
    return {
        **{name: summary.get(name) for name in _AS_THEY_ARE},
        "waste": rows / fewest - 1 if rows and fewest else None,
        "samples_per_microbatch": _ratio(summary.get("samples"), summary.get("microbatches")),
        "real_tokens_per_step": _ratio(real, steps),
        **{f"{phase}_share": shares.get(phase) for phase in PHASES},
        "val_loss": val_loss_at(run, common.real_tokens),
        "seconds_to_loss": seconds_to(run, common.val_loss),
    }


_AS_THEY_ARE = (
    "steps",
    "fill",
    "slot_tokens_per_s",
    "real_tokens_per_s",
    "loss_tokens_per_s",
    "attention_imbalance",
    "mfu",
    "model_flops_per_s",
    "peak_memory_bytes",
    "wall_seconds",
)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def val_loss_at(run: Run, real_tokens: int | None) -> float | None:
    """The validation loss at a number of real tokens, on the line between two validations."""
    x, y = val_series(run, "real_tokens")
    if real_tokens is None or not x or not x[0] <= real_tokens <= x[-1]:
        return None
    return float(np.interp(real_tokens, x, y))


def seconds_to(run: Run, loss: float | None) -> float | None:
    """When the validation loss was first as low as this, on the line between two validations."""
    x, y = val_series(run, "wall_seconds")
    if loss is None or not x or min(y) > loss:
        return None
    if y[0] <= loss:
        return x[0]
    for (x0, y0), (x1, y1) in itertools.pairwise(zip(x, y, strict=True)):
        if y1 <= loss:
            return x0 + (x1 - x0) * (y0 - loss) / (y0 - y1)
    return None


def val_series(run: Run, axis: str) -> Series:
    """Validation loss against an axis."""
    return _series(run, run.val, axis, "val_loss")


def train_series(run: Run, axis: str) -> Series:
    """Training loss against an axis."""
    return _series(run, run.train, axis, "loss")


def _series(run: Run, records: Sequence[Record], axis: str, value: str) -> Series:
    seconds = _wall_seconds(run) if axis == "wall_seconds" else {}
    x: list[float] = []
    y: list[float] = []
    for record in records:
        at = seconds.get((record["event"], record["step"])) if seconds else record.get(X_AXES[axis])
        if at is not None and record.get(value) is not None:
            x.append(float(at))
            y.append(float(record[value]))
    return x, y


def _wall_seconds(run: Run) -> dict[tuple[str, int], float]:
    """When each record was made; older runs did not note it, there steps and validations add up."""
    records = sorted([*run.train, *run.val], key=lambda r: (r["step"], r["event"] == "val"))
    noted = {(r["event"], r["step"]): r.get("wall_seconds") for r in records}
    if records and all(v is not None for v in noted.values()):
        return {key: float(v) for key, v in noted.items() if v is not None}
    passed, added = 0.0, {}
    for record in records:
        passed += record.get("step_seconds") or record.get("val_seconds") or 0.0
        added[record["event"], record["step"]] = passed
    return added if passed else {}
