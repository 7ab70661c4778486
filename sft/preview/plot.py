"""The picture: how long the samples are, and how full each choice makes its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_INK, _PALE = "#1f4e79", "#d7dde4"


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw a preview's content into a PNG."""
    # It takes longer to import than most previews take.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    data, choices = content["data"], content["choices"]
    bars_height = 0.28 * len(choices) + 1.0
    figure = Figure(figsize=(9, 3.0 * len(data) + bars_height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        len(data) + 1, 1, height_ratios=[3.0] * len(data) + [bars_height], squeeze=False
    )[:, 0]
    for ax, described in zip(axes, data, strict=False):
        _draw_lengths(ax, described)
    _draw_fill(axes[-1], choices)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _draw_lengths(ax: Any, described: dict[str, Any]) -> None:
    edges = described["length_histogram"]["bin_edges"]
    counts = described["length_histogram"]["counts"]
    ax.bar(
        edges[:-1], counts, width=edges[1] - edges[0], align="edge", color=_INK, edgecolor="white"
    )
    ax.set_xlim(0, described["capacity"])
    ax.set_xlabel("tokens of a sample")
    ax.set_ylabel("samples")
    kept, mean = described["accounting"]["kept"], described["lengths"]["mean"]
    ax.set_title(
        f"{described['source']}: {kept:,} samples, mean {mean:,.0f} tokens, "
        f"capacity {described['capacity']:,}",
        loc="left",
        fontsize="medium",
    )


def _draw_fill(ax: Any, choices: list[dict[str, Any]]) -> None:
    names = [c["name"] for c in choices]
    at = range(len(choices))
    ax.barh(at, [1.0] * len(choices), color=_PALE, height=0.7)
    ax.barh(at, [c["fill"] for c in choices], color=_INK, height=0.7)
    for y, choice in zip(at, choices, strict=True):
        text = f"{'~' if choice['estimated'] else ''}{choice['fill']:.3f}"
        ax.text(1.01, y, text, va="center", fontsize="small")
    ax.set_yticks(list(at), names, fontsize="small")
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xlabel("fill: real tokens per slot that is computed")
