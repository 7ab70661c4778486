"""The pictures, as PNG: for the Markdown, and for wherever a page cannot be shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sft.report.content import Content
from sft.report.figures import AXES, fill_points, focus, speed_points
from sft.report.style import Look, looks

_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_MARKERS = {"circle": "o", "diamond": "D", "square": "s", "triangle-up": "^"}
_INK, _FAINT = "#222222", "#dddddd"
_STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.edgecolor": "#999999", "axes.labelcolor": _INK, "text.color": _INK,
    "xtick.color": "#555555", "ytick.color": "#555555", "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": _FAINT, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "figure.dpi": 144, "savefig.facecolor": "white",
}  # fmt: skip


def draw(content: Content, output: Path) -> dict[str, str]:
    """Write the pictures for which there is something to show.

    Returns:
        By file name, what each shows.
    """
    everything: dict[str, tuple[str, Callable[[Content], Figure | None]]] = {
        "speed.png": ("Speed of every run", _speed),
        "validation_loss.png": ("Validation loss", lambda c: _curves(c, "val")),
        "training_loss.png": ("Training loss", lambda c: _curves(c, "train")),
        "learning_apart.png": ("Validation loss less its mean over the choices", _apart),
        "rows.png": ("Fill and samples per microbatch", _rows),
        "lengths.png": ("Lengths of the trained samples", _lengths),
    }
    drawn = {}
    # Text is text: a $ in a name starts no formula.
    with mpl.rc_context({**_STYLE, "text.parse_math": False}):
        for name, (title, make) in everything.items():
            (output / name).unlink(missing_ok=True)
            if figure := make(content):
                figure.savefig(output / name, bbox_inches="tight")
                drawn[name] = title
    return drawn


def _speed(content: Content) -> Figure | None:
    points = speed_points(content)
    if not points:
        return None
    figure, axes = _figure(7.0, 0.9 + 0.27 * len(points))
    styles = looks(content.choices)
    for place, point in enumerate(points):
        look = styles[point["index"]]
        axes.plot(
            point["values"], [place] * len(point["values"]), _MARKERS[look.symbol], ms=4.5,
            color=look.light, alpha=0.55, mec="none",
        )  # fmt: skip
        axes.plot([point["mean"]] * 2, [place - 0.28, place + 0.28], color=look.light, lw=2.2)
    _names(axes, [p["choice"] for p in points])
    axes.set_xlabel("real tokens per second; a dot is a run, the bar their mean")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    return figure


def _curves(content: Content, kind: str) -> Figure | None:
    panels = {axis: s for axis, s in content.curves[kind].items() if s}
    if not panels:
        return None
    first = next(iter(panels.values()))
    columns = min(len(first), 4)
    height = 2.6 + 0.17 * math.ceil(len(first) / columns)  # the key has as many lines as it needs
    figure = Figure(figsize=(4.1 * len(panels), height + 0.5), layout="constrained")
    styles = looks(content.choices)
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (axis, series) in zip(all_axes, panels.items(), strict=True):
        for one in series:
            look = styles[one["index"]]
            # Many bands over one another must still let the lines through.
            _curve(axes, one, look, points=kind == "val", alpha=0.13 if len(series) < 7 else 0.04)
        axes.set_xlabel(AXES[axis])
        axes.xaxis.set_major_formatter(lambda x, _: _short(x))
        axes.locator_params(axis="x", nbins=5)
        if limits := focus(series):
            axes.set_ylim(*limits)
    all_axes[0].set_ylabel("validation loss" if kind == "val" else "training loss")
    shown = [(content.choices[s["index"]].label, styles[s["index"]]) for s in first]
    lines = [_key(look, label) for label, look in shown]
    figure.legend(handles=lines, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _apart(content: Content) -> Figure | None:
    series = content.curves["apart"]["real_tokens"]
    if not series:
        return None
    figure, axes = _figure(8.2, 3.4 + 0.17 * math.ceil(len(series) / 3))
    styles = looks(content.choices)
    for one in series:
        look = styles[one["index"]]
        _curve(axes, one, look, points=True, alpha=0.13 if len(series) < 7 else 0.04)
    axes.set_xlabel(AXES["real_tokens"])
    axes.xaxis.set_major_formatter(lambda x, _: _short(x))
    axes.set_ylabel("validation loss less its mean")
    keys = [_key(styles[s["index"]], s["choice"]) for s in series]
    figure.legend(handles=keys, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _curve(axes: Axes, one: dict[str, Any], look: Look, *, points: bool, alpha: float) -> None:
    marker = _MARKERS[look.symbol] if points else None
    axes.plot(
        one["x"], one["mean"], _DASHES[look.dash], color=look.light, lw=1.4, marker=marker, ms=3
    )
    if "low" in one:
        axes.fill_between(one["x"], one["low"], one["high"], color=look.light, alpha=alpha, lw=0)


def _key(look: Look, label: str) -> Line2D:
    return Line2D(
        [], [], color=look.light, ls=_DASHES[look.dash], marker=_MARKERS[look.symbol], ms=4,
        label=label,
    )  # fmt: skip


def _rows(content: Content) -> Figure | None:
    fill, segments = fill_points(content), content.segments
    if not fill or not segments:
        return None
    figure = Figure(figsize=(9.0, 0.9 + 0.27 * len(fill)), layout="constrained")
    left, right = figure.subplots(1, 2)
    styles = looks(content.choices)
    for place, point in enumerate(fill):
        look = styles[point["index"]]
        left.plot(point["mean"], place, _MARKERS[look.symbol], color=look.light, ms=6)
    _names(left, [p["choice"] for p in fill])
    left.set_xlabel("fill: real tokens per slot")
    for place, point in enumerate(segments):
        look = styles[point["index"]]
        if point["low"] is not None:
            right.plot(
                [point["low"], point["high"]], [place] * 2, color=look.light, lw=1.6, alpha=0.6
            )
        right.plot(point["mean"], place, _MARKERS[look.symbol], color=look.light, ms=6)
    _names(right, [p["choice"] for p in segments])
    right.tick_params(labelleft=False)
    right.set_xlabel("samples per microbatch: mean, and the middle 80 %")
    return figure


def _lengths(content: Content) -> Figure | None:
    if not content.lengths:
        return None
    figure, axes = _figure(7.0, 2.6)
    for number, one in enumerate(content.lengths):
        label = f"{len(one['choices'])} choices" if len(content.lengths) > 1 else None
        axes.stairs(
            one["shares"], one["bin_edges"], fill=True, alpha=0.55,
            color=("#0072b2", "#d55e00", "#009e73")[number % 3], label=label,
        )  # fmt: skip
    axes.set_xlabel("tokens of a sample")
    axes.set_ylabel("share of samples")
    axes.xaxis.set_major_formatter(lambda x, _: _short(x))
    if len(content.lengths) > 1:
        axes.legend(frameon=False)
    return figure


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _names(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):g}{unit}"
    return f"{value:,g}"
