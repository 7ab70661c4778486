"""What the figures show; the page and the pictures draw the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sft.report.content import Content

AXES = {"real_tokens": "real tokens", "wall_seconds": "wall time, s", "steps": "optimizer steps"}


def focus(series: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """A range of losses that leaves out the first fall, which would flatten all the rest.

    None where there are too few points to leave any out.
    """
    if not series or min(len(s["x"]) for s in series) < 4:
        return None
    values = []
    for one in series:
        first, last = one["x"][0], one["x"][-1]
        start = first + (last - first) / 10
        for x, mean, low, high in zip(
            one["x"], one["mean"], *(one.get(k, one["mean"]) for k in ("low", "high")), strict=True
        ):
            if x >= start:
                values += [mean, low, high]
    pad = (max(values) - min(values)) * 0.06 or 0.01
    return min(values) - pad, max(values) + pad


def speed_points(content: Content) -> list[dict[str, Any]]:
    """Every run's speed, by choice, the fastest choice first."""
    points = []
    for index, row in enumerate(content.rows):
        values = [v for r in row.choice.runs if (v := (r.summary or {}).get("real_tokens_per_s"))]
        spread = row.spreads.get("real_tokens_per_s")
        if values and spread:
            entry = {"choice": row.choice.label, "index": index, "values": values}
            points.append(
                {**entry, "mean": spread.mean, "seeds": [r.seed for r in row.choice.runs]}
            )
    return points


def fill_points(content: Content) -> list[dict[str, Any]]:
    """The mean fill of every choice."""
    return [
        {"choice": row.choice.label, "index": index, "mean": spread.mean}
        for index, row in enumerate(content.rows)
        if (spread := row.spreads.get("fill"))
    ]
