"""Waste against speed as a picture: every packer of ``bench/packers.py`` is a point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator
from matplotlib.transforms import Bbox
from packers_measure import Result
from packers_report import COMPARED
from peers import contenders

OURS, PEER = "#0b6e4f", "#c8553d"
WIDTH_IN, PANEL_IN, DPI = 10, 6.2, 100
# One panel for each of these that was measured, else one for the first distribution.
PANELS = ("chat", "triplet")
LARGEST = 1_000_000
# Per cent.
TICKS = (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)

type Point = tuple[float, float]
type Segment = tuple[Point, Point]


def draw(results: Sequence[Result], head: dict[str, Any], path: Path) -> None:
    """Draws the panels and writes them.

    Args:
        results: all of a run.
        head: the report's header.
        path: a PNG file.
    """
    panels = [points for points in (_points(results, name) for name in PANELS) if points]
    if not panels:
        panels = [points for points in [_points(results, None)] if points]
    if not panels:
        return
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(WIDTH_IN, PANEL_IN * len(panels)), dpi=DPI, squeeze=False
    )
    forms = {c.name: (c.ours, c.form == "arrays") for c in contenders()}
    for ax, points in zip(axes[:, 0], panels, strict=True):
        _panel(ax, points, forms)
    title = f"Sequence packers: bins over the lower bound against speed ({head['date']})"
    figure.suptitle(title, fontsize=12)
    inches = PANEL_IN * len(panels)
    figure.legend(handles=_legend(), loc="upper center", ncols=4, fontsize=9, frameon=False,
                  bbox_to_anchor=(0.5, 1 - 0.33 / inches))  # fmt: skip
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.4 / inches))
    figure.canvas.draw()
    for ax, points in zip(axes[:, 0], panels, strict=True):
        _label(ax, points, forms)
    figure.savefig(path)
    plt.close(figure)


def _points(results: Sequence[Result], name: str | None) -> list[Result]:
    """Each packer's largest measured size up to 1M, for one distribution at one capacity."""
    measured = [r for r in results if r.bins is not None and r.seconds]
    here = [r for r in measured if name in (None, r.distribution)]
    if not here:
        return []
    at = [r for r in here if r.capacity == COMPARED[1]] or here
    first = at[0]
    at = [r for r in at if (r.distribution, r.capacity) == (first.distribution, first.capacity)]
    at = [r for r in at if r.n <= LARGEST] or at
    return list({r.name: r for r in sorted(at, key=lambda r: r.n)}.values())


def _at(point: Result) -> Point:
    """Where it is in the panel."""
    return point.speed or 1.0, point.over_percent or 0.0


def _algorithm(name: str) -> str:
    """A packer's name without its form."""
    return name.removesuffix(".pack_csr").removesuffix(".pack").removesuffix(" flat")


def _pairs(points: Sequence[Result]) -> list[tuple[Result, Result]]:
    """The two forms of every algorithm that was measured in both."""
    ordered = sorted(points, key=lambda point: point.name)
    return [
        (one, other)
        for one, other in combinations(ordered, 2)
        if _algorithm(one.name) == _algorithm(other.name)
    ]


def _style(ours: bool, arrays: bool) -> dict[str, Any]:
    """Colour tells whose it is, filling what it takes."""
    colour = OURS if ours else PEER
    return {
        "marker": "o" if ours else "s", "color": colour,
        "markerfacecolor": colour if arrays else "white", "markersize": 5.5, "linestyle": "none",
    }  # fmt: skip


def _legend() -> list[Line2D]:
    whose = ((True, "this project"), (False, "other packages"))
    forms = ((True, "arrays"), (False, "lists"))
    labels = {(ours, arrays): f"{owner}, {form}" for ours, owner in whose for arrays, form in forms}
    return [Line2D([], [], label=label, **_style(*kind)) for kind, label in labels.items()]


def _panel(ax: Axes, points: Sequence[Result], forms: dict[str, tuple[bool, bool]]) -> None:
    """Axes and points, without labels."""
    for point in points:
        ax.plot(*_at(point), zorder=3, **_style(*forms[point.name]))
    for one, other in _pairs(points):
        both = zip(_at(one), _at(other), strict=True)
        ax.plot(*both, color=OURS if forms[one.name][0] else PEER, lw=0.5, alpha=0.6)
    speeds = [point.speed or 1 for point in points]
    over = [point.over_percent or 0 for point in points]
    ax.set_xscale("log")
    ax.set_xlim(min(speeds) / 2.5, max(speeds) * 3)
    ax.set_yscale("symlog", linthresh=0.1, linscale=0.8)
    ax.set_ylim(-0.1 if min(over) < 0.2 else min(over) / 1.7, max(max(over) * 1.7, 0.5))
    ax.yaxis.set_major_locator(FixedLocator(TICKS))
    ax.yaxis.set_minor_locator(FixedLocator([]))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    ax.grid(alpha=0.25)
    sizes = sorted({point.n for point in points})
    note = f"n = {sizes[-1]:,}" + (" (smaller where too slow)" if len(sizes) > 1 else "")
    first = points[0]
    ax.set_title(f"{first.distribution}, C = {first.capacity:,}, {note}", fontsize=10)
    ax.set_xlabel("sequences a CPU second (faster to the right)", fontsize=9)
    ax.set_ylabel("bins over L2 (better below)", fontsize=9)
    ax.tick_params(labelsize=8)


def _label(ax: Axes, points: Sequence[Result], forms: dict[str, tuple[bool, bool]]) -> None:
    """Names every algorithm once, where there is room, with a line to its point."""
    canvas = ax.figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    renderer, frame = canvas.get_renderer(), ax.get_window_extent()
    spots: dict[str, Point] = {p.name: tuple(ax.transData.transform(_at(p))) for p in points}
    markers = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in spots.values()]
    labels: list[Bbox] = []
    lines: list[Segment] = [(spots[one.name], spots[other.name]) for one, other in _pairs(points)]
    # Arrays last, so that an algorithm with both forms is named at its arrays.
    named = {_algorithm(p.name): p for p in sorted(points, key=lambda p: forms[p.name][1])}
    for name, point in sorted(named.items(), key=lambda pair: spots[pair[1].name]):
        text = ax.text(0, 0, name, fontsize=8, color=OURS if forms[point.name][0] else PEER,
                       ha="center", va="center", transform=None, zorder=4)  # fmt: skip
        size = text.get_window_extent(renderer)
        start = spots[point.name]
        box = _best_box(start, (size.width + 6, size.height + 4), markers, labels, lines, frame)
        text.set_position(((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2))
        end = _nearest(box, start)
        labels.append(box)
        lines.append((start, end))
        ax.add_line(Line2D(*zip(start, end, strict=True), color="0.45", lw=0.6, transform=None))


def _nearest(box: Bbox, at: Point) -> Point:
    """The point of a box that is nearest to a point."""
    return min(max(at[0], box.x0), box.x1), min(max(at[1], box.y0), box.y1)


def _best_box(
    at: Point, size: Point, markers: Sequence[Bbox], labels: Sequence[Bbox],
    lines: Sequence[Segment], frame: Bbox,
) -> Bbox:  # fmt: skip
    """Where a label of that size goes: on no other box, and near, with a line that disturbs little.

    Args:
        at: the point it names.
        size: width and height.
        markers: all points.
        labels: those placed before.
        lines: from the labels before to their points, and between two forms of an algorithm.
        frame: what to stay in.

    Returns:
        The label's box; where nothing is free, one above the point.
    """
    best, least = _box_at(at, size, 12, math.pi / 2), math.inf
    for radius in range(6, 300, 6):
        for step in range(48):
            box = _box_at(at, size, radius, step * math.pi / 24)
            if not (frame.containsx(box.x0) and frame.containsx(box.x1)):
                continue
            if not (frame.containsy(box.y0) and frame.containsy(box.y1)):
                continue
            if radius >= least or any(map(box.overlaps, (*markers, *labels))):
                continue
            line = (at, _nearest(box, at))
            crossed = sum(_cross(*line, *other) or _hits(other, box) for other in lines)
            crossed += sum(_hits(line, other) for other in labels)
            covered = sum(_hits(line, other) for other in markers if not other.contains(*at))
            cost = radius + 150 * crossed + 12 * covered
            if cost < least:
                best, least = box, cost
    return best


def _box_at(at: Point, size: Point, radius: float, angle: float) -> Bbox:
    """A box whose edge is about ``radius`` away from a point."""
    x = at[0] + (radius + size[0] / 2) * math.cos(angle)
    y = at[1] + (radius + size[1] / 2) * math.sin(angle)
    return Bbox.from_bounds(x - size[0] / 2, y - size[1] / 2, *size)


def _cross(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether the segments a-b and c-d cross."""

    def side(p: Point, q: Point, r: Point) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def _hits(line: Segment, box: Bbox) -> bool:
    """Whether a segment passes through a box."""
    corners = ((box.x0, box.y0), (box.x1, box.y0), (box.x1, box.y1), (box.x0, box.y1))
    edges = zip(corners, corners[1:] + corners[:1], strict=True)
    return box.contains(*line[1]) or any(_cross(*line, *edge) for edge in edges)
