"""Cutting stock by column generation: which patterns to use, and how often each.

Gilmore and Gomory, "A linear programming approach to the cutting-stock problem", Operations
Research 9 (1961): minimise the number of bins over all patterns that fit, with as many samples of
each length as there are, where a pattern may be used half a time. There are as many patterns in the
answer as there are lengths. They come one by one: given what a sample of each length is worth in
the answer so far, the pattern that is worth the most is the one to try next (a knapsack).

Rounded down, the answer packs nearly all samples of a large data set nearly perfectly, and what is
left over is a small problem for another packer.

So that it takes a fraction of a second, lengths are put into classes, and a sample is taken to be
as long as the longest of its class. What is found fits all the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from data.packers._bits import Bits
from data.packers._compile import compiled
from data.packers._fill import Counts, take
from data.packers._layers import Layers, Runs, longer, set_layer, set_run

type _Floats = npt.NDArray[np.float64]

_CELLS = 2048  # of the knapsack: a length is a multiple of capacity / 2048, rounded up
_TOLERANCE = 1e-3  # how far from the best linear answer is near enough
_EPSILON = 1e-9


def classes_of(count: Counts, most: int) -> Counts:
    """The longest length of each class, descending, at most ``most`` of them.

    Where there are more different lengths than that, classes have about equally many samples.
    """
    distinct = np.flatnonzero(count)
    if distinct.size > most:
        samples = np.cumsum(count[distinct])
        ends = np.searchsorted(samples, np.arange(1, most + 1) * (samples[-1] / most))
        distinct = distinct[np.unique(np.minimum(ends, distinct.size - 1))]
    return distinct[::-1].astype(np.int64)


@compiled
def _most_valuable(weights: Counts, values: _Floats, best: _Floats, pattern: Counts) -> float:
    """The pattern worth the most, by dynamic programming; O(classes * cells).

    Args:
        weights: of each class, in cells.
        values: of each class.
        best: ``[cells + 1]``, to work in: the most that so many cells can be worth.
        pattern: is filled in, how many of each class.

    Returns:
        What it is worth.
    """
    best[:] = 0.0
    for kind in range(weights.size):
        value = values[kind]
        if value > 0.0:
            for cell in range(weights[kind], best.size):
                best[cell] = max(best[cell], best[cell - weights[kind]] + value)
    pattern[:] = 0
    cell = best.size - 1
    while best[cell] > 0.0:
        found = False
        for kind in range(weights.size):
            if (
                values[kind] > 0.0
                and weights[kind] <= cell
                and best[cell] == best[cell - weights[kind]] + values[kind]
            ):
                pattern[kind] += 1
                cell -= weights[kind]
                found = True
                break
        if not found:
            cell -= 1
    return float(best[best.size - 1])


@compiled
def patterns_and_uses(weights: Counts, demand: _Floats, cells: int) -> tuple[_Floats, _Floats]:
    """Solves the linear programme by the revised simplex method.

    Args:
        weights: of each class, in cells, in ``[1, cells]``.
        demand: samples of each class, more than 0.
        cells: that a bin has.

    Returns:
        Patterns ``[classes, patterns]``, how many of each class a bin has, and how often each is
        used, ``[patterns]``. It ends when no better answer than one by a thousandth can exist
        (Farley, "A note on bounding a class of linear programming problems, including cutting stock
        problems", Operations Research 38, 1990), or after 20 rounds per class. A round takes
        O(classes * (classes + cells)) time.
    """
    kinds = weights.size
    basis = np.zeros((kinds, kinds))
    inverse = np.zeros((kinds, kinds))
    uses = np.empty(kinds)
    for kind in range(kinds):  # to begin with, each class has its own bins
        alone = cells // weights[kind]
        basis[kind, kind] = alone
        inverse[kind, kind] = 1.0 / alone
        uses[kind] = demand[kind] / alone
    values = np.empty(kinds)
    change = np.empty(kinds)
    best = np.empty(cells + 1)
    pattern = np.empty(kinds, np.int64)
    bound = 0.0
    for _ in range(20 * kinds):
        values[:] = 0.0
        for row in range(kinds):
            for kind in range(kinds):
                values[kind] += inverse[row, kind]
        worth = _most_valuable(weights, values, best, pattern)
        bins = uses.sum()
        bound = max(bound, bins / worth)
        if worth <= 1.0 + _EPSILON or bins <= bound * (1.0 + _TOLERANCE):
            break
        change[:] = 0.0
        for kind in range(kinds):
            if pattern[kind] > 0:
                for row in range(kinds):
                    change[row] += inverse[row, kind] * pattern[kind]
        out = _leaving(uses, change)
        if out < 0:
            break
        step = uses[out] / change[out]
        for row in range(kinds):
            uses[row] = max(uses[row] - step * change[row], 0.0)
        uses[out] = step
        for kind in range(kinds):
            basis[kind, out] = pattern[kind]
            inverse[out, kind] /= change[out]
        for row in range(kinds):
            if row != out and change[row] != 0.0:
                for kind in range(kinds):
                    inverse[row, kind] -= change[row] * inverse[out, kind]
    return basis, uses


@compiled
def _leaving(uses: _Floats, change: _Floats) -> int:
    """The pattern that is used up first when the new one comes in, or -1; the surest of a tie."""
    out = -1
    least = np.inf
    for row in range(uses.size):
        if change[row] > _EPSILON:
            ratio = uses[row] / change[row]
            if ratio < least - 1e-12 or (ratio < least + 1e-12 and change[row] > change[out]):
                least = ratio
                out = row
    return out


def fill_by_patterns(
    left: Counts, present: Bits, capacity: int, most_classes: int, layers: Layers, runs: Runs
) -> tuple[Layers, int, Runs, int]:
    """Packs most of what is left, as the linear programme has it, rounded down.

    Args:
        left: samples of each length, ``[capacity + 1]``; those packed are taken out.
        present: the lengths of which there are any; likewise.
        capacity: in tokens.
        most_classes: the more classes, the better the answer and the longer it takes.
        layers: empty; is filled in.
        runs: empty; is filled in.

    Returns:
        The layers and how many there are, the runs and how many there are.
    """
    longest = classes_of(left, most_classes)
    of_class = np.diff(np.concatenate(([0], np.cumsum(left)[longest[::-1]])))[::-1]
    grid = -(-capacity // _CELLS)
    weights = -(-longest // grid)
    cells = capacity // grid
    # A length in the last part of a cell can be rounded up to more than a bin has.
    weights = np.minimum(weights, cells)
    patterns, uses = patterns_and_uses(weights, of_class.astype(np.float64), cells)
    return _lay_patterns(
        left,
        present,
        longest,
        of_class.copy(),
        np.rint(patterns).astype(np.int64),
        np.floor(uses + _EPSILON).astype(np.int64),
        layers,
        runs,
    )


@compiled
def _next_length(left: Counts, length: int, shorter_than: int) -> int:
    """The longest length of which there are samples, from ``length`` down."""
    while length > shorter_than and left[length] == 0:
        length -= 1
    return length


@compiled
def _lay_patterns(
    left: Counts,
    present: Bits,
    longest: Counts,
    of_class: Counts,
    patterns: npt.NDArray[np.int64],
    uses: Counts,
    layers: Layers,
    runs: Runs,
) -> tuple[Layers, int, Runs, int]:
    """Fills the patterns with samples, of each class the longest first.

    Bins in turn are alike until a length has too few left for the next one. There are enough
    samples, but for errors of rounding in how often a pattern is used.
    """
    layer_count = 0
    run_count = 0
    bins = 0
    kinds = longest.size
    at = longest.copy()  # of each class, the longest length of which there are samples
    for column in range(uses.size):
        while uses[column] > 0:
            enough = True
            times = uses[column]
            for kind in range(kinds):
                wanted = patterns[kind, column]
                if of_class[kind] < wanted:
                    enough = False
                elif wanted > 0:
                    end = longest[kind + 1] if kind + 1 < kinds else 0
                    at[kind] = _next_length(left, at[kind], end)
                    times = max(min(times, left[at[kind]] // wanted), 1)
            if not enough:
                break
            if run_count == runs.shape[0]:
                runs = longer(runs, 0)
            below = -1
            size = 0
            for kind in range(kinds):
                wanted = patterns[kind, column]
                of_class[kind] -= times * wanted
                end = longest[kind + 1] if kind + 1 < kinds else 0
                while wanted > 0:
                    at[kind] = _next_length(left, at[kind], end)
                    samples = min(wanted, left[at[kind]] // times)
                    if layer_count == layers.shape[0]:
                        layers = longer(layers, 0)
                    set_layer(layers, layer_count, at[kind], samples, bins, times, 1, size, below)
                    take(left, present, at[kind], times * samples)
                    below = layer_count
                    layer_count += 1
                    size += samples
                    wanted -= samples
            set_run(runs, run_count, bins, times, below, size, 0)
            run_count += 1
            bins += times
            uses[column] -= times
    return layers, layer_count, runs, run_count
