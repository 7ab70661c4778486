"""Curves of loss: mean and band over the seeds of a choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sft.report.choices import Choice
from sft.report.collect import Run
from sft.report.measures import X_AXES, Series, train_series, val_series

# A curve of more points than a screen has pixels shows nothing more.
_MOST_POINTS = 160


def curves(choices: Sequence[Choice]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """``{"val" | "train": {axis: [curve of a choice]}}``; runs that did not finish are left out.

    ``apart`` has one axis, real tokens: validation loss less the mean of the choices of its seed.
    """
    kinds: dict[str, Callable[[Run, str], Series]] = {"val": val_series, "train": _smooth}
    found = {
        kind: {axis: _of_axis(choices, axis, series) for axis in X_AXES}
        for kind, series in kinds.items()
    }
    return {**found, "apart": {"real_tokens": _apart(choices)}}


def smoothing_steps(run: Run) -> int:
    """Over how many steps the training loss is averaged: enough to see past single batches."""
    return max(1, len(run.train) // 20)


def _of_axis(
    choices: Sequence[Choice], axis: str, series: Callable[[Run, str], Series]
) -> list[dict[str, Any]]:
    found = []
    for index, choice in enumerate(choices):
        members = [s for s in (series(run, axis) for run in choice.runs) if s[0]]
        if members:
            found.append({"choice": choice.label, "index": index, **_band(members)})
    return found


def _apart(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """Curves that fall together lie on one another; what sets them apart is in the third digit.

    Within a seed, so that what the order of the data adds to all choices is gone. The mean is over
    the choices that have every seed: with one that failed now and then it would jump.
    """
    by_seed: dict[Any, dict[int, Series]] = {}
    for index, choice in enumerate(choices):
        for run in choice.runs:
            if (series := val_series(run, "real_tokens"))[0]:
                by_seed.setdefault(run.seed, {}).setdefault(index, series)
    if not by_seed:
        return []
    everywhere = set.intersection(*(set(members) for members in by_seed.values()))
    if len(everywhere) < 2:
        return []
    apart: dict[int, list[Series]] = {}
    for members in by_seed.values():
        grid = _grid(list(members.values()))
        values = {index: np.interp(grid, x, y) for index, (x, y) in members.items()}
        mean = np.mean([values[index] for index in everywhere], axis=0)
        for index, y in values.items():
            apart.setdefault(index, []).append((grid.tolist(), (y - mean).tolist()))
    return [
        {"choice": choices[index].label, "index": index, **_band(apart[index])}
        for index in sorted(apart)
    ]


def _band(members: Sequence[Series]) -> dict[str, Any]:
    """Mean and standard deviation where all seeds have been, no further."""
    grid = _grid(members)
    values = np.array([np.interp(grid, x, y) for x, y in members])
    mean = values.mean(axis=0)
    content = {"seeds": len(members), "x": grid.tolist(), "mean": mean.tolist()}
    if len(members) > 1:
        sd = values.std(axis=0, ddof=1)
        content |= {"low": (mean - sd).tolist(), "high": (mean + sd).tolist()}
    return content


def _grid(members: Sequence[Series]) -> NDArray[np.float64]:
    """Where the curves are read: near their own points, and where all of them have been."""
    first, last = max(x[0] for x, _ in members), min(x[-1] for x, _ in members)
    points = min(len(x) for x, _ in members)
    places = [np.asarray(x[:points]) for x, _ in members]
    grid = np.unique(np.clip(np.mean(places, axis=0), first, last))
    if len(grid) > _MOST_POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, _MOST_POINTS).round().astype(int)]
    return grid


def _smooth(run: Run, axis: str) -> Series:
    """Training loss, each point the mean of the last few steps."""
    x, y = train_series(run, axis)
    width = smoothing_steps(run)
    total = np.concatenate([[0.0], np.cumsum(y)])
    ends = np.arange(1, len(y) + 1)
    starts = np.maximum(ends - width, 0)
    return x, ((total[ends] - total[starts]) / (ends - starts)).tolist()
