"""Filling bins with the longest samples that fit: first-fit decreasing, bin by bin."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from data.packers._bits import Bits, at_most, lengths_present, remove
from data.packers._compile import compiled
from data.packers._layers import Layers, Runs, longer, new_layers, new_runs, set_layer, set_run

type Counts = npt.NDArray[np.int64]


@compiled
def longest_that_fit(
    left: Counts, present: Bits, room: int, slots: int, lengths: Counts, per_bin: Counts
) -> tuple[int, int]:
    """What a bin gets that always takes the longest sample that fits.

    Args:
        left: samples of each length, ``[capacity + 1]``.
        present: the lengths of which there are any.
        room: the bin's, in tokens.
        slots: how many samples it may still take.
        lengths: is filled in, see ``pattern_rows``.
        per_bin: is filled in: how many of each of these lengths.

    Returns:
        How many different lengths, and how many bins in turn come out the same: as long as every
        length has as many left as a bin takes.
    """
    rows = 0
    times = 1 << 62
    length = at_most(present, room)
    while length > 0 and slots > 0:
        available = left[length]
        samples = 1
        if 2 * length <= room:  # a division takes longer than all the rest
            samples = min(room // length, available, slots)
        lengths[rows] = length
        per_bin[rows] = samples
        rows += 1
        times = min(times, available if samples == 1 else available // samples)
        room -= samples * length
        slots -= samples
        length = at_most(present, min(room, length - 1))
    return rows, times


@compiled
def pattern_rows(capacity: int) -> Counts:
    """Room for the lengths in one bin: k distinct ones take at least k * (k + 1) / 2 tokens."""
    return np.empty(int(np.sqrt(2.0 * capacity)) + 2, np.int64)


@compiled
def take(left: Counts, present: Bits, length: int, samples: int) -> None:
    """Takes samples of one length, of which there are as many, out of those that are left."""
    left[length] -= samples
    if left[length] == 0:
        remove(present, length)


@compiled
def fill_new_bins(
    left: Counts,
    present: Bits,
    capacity: int,
    most_samples: int,
    layers: Layers,
    layer_count: int,
    runs: Runs,
    run_count: int,
    bins: int,
) -> tuple[Layers, int, Runs, int]:
    """First-fit decreasing of all that is left, into bins of their own.

    First fit puts into bin 0, in the order of decreasing length, all that still fits it; into bin 1
    what of the rest fits that; and so on. So each bin takes the longest that fit, and bins repeat
    while the lengths last.

    Args:
        left: samples of each length, ``[capacity + 1]``; afterwards all 0.
        present: the lengths of which there are any; afterwards empty.
        capacity: in tokens.
        most_samples: a bin with this many samples is full.
        layers: is extended; there are ``layer_count`` so far.
        layer_count: see there.
        runs: is extended; there are ``run_count`` so far.
        run_count: see there.
        bins: how many there are so far.

    Returns:
        The layers and how many there are, the runs and how many there are. It takes O(layers) time.
    """
    lengths = pattern_rows(capacity)
    per_bin = pattern_rows(capacity)
    while True:
        rows, times = longest_that_fit(left, present, capacity, most_samples, lengths, per_bin)
        if rows == 0:
            return layers, layer_count, runs, run_count
        if layer_count + rows > layers.shape[0]:
            layers = longer(layers, layer_count + rows)
        if run_count == runs.shape[0]:
            runs = longer(runs, 0)
        below = -1
        size = 0
        for row in range(rows):
            samples = per_bin[row]
            set_layer(layers, layer_count, lengths[row], samples, bins, times, 1, size, below)
            take(left, present, lengths[row], times * samples)
            below = layer_count
            size += samples
            layer_count += 1
        set_run(runs, run_count, bins, times, below, size, 0)
        run_count += 1
        bins += times


@compiled
def first_fit_decreasing(count: Counts, capacity: int, most_samples: int) -> tuple[Layers, Runs]:
    """First-fit decreasing of a histogram ``[capacity + 1]``: its layers and its runs."""
    samples = int(count.sum())
    layers, layer_count, runs, run_count = fill_new_bins(
        count.copy(),
        lengths_present(count),
        capacity,
        most_samples,
        new_layers(samples),
        0,
        new_runs(samples),
        0,
        0,
    )
    return layers[:layer_count], runs[:run_count]
