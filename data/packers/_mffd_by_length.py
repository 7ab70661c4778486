"""Modified first-fit decreasing of a histogram; ``mffd`` describes the phases.

The bins opened for the large samples are a list of runs in order, which each phase reads and
writes anew: it may split a run, and adds at most a pattern to each part. A bin opened for a large
sample has less than C/2 of room, and less than C/3 beside a small one. So "the longest sample that
fits" is never above the wanted class, only perhaps below it.
"""

from __future__ import annotations

from data.packers._bits import Bits, at_least, at_most, lengths_present
from data.packers._compile import compiled
from data.packers._fill import Counts, fill_new_bins, longest_that_fit, pattern_rows, take
from data.packers._layers import (
    BINS,
    FIRST,
    ROOM,
    SIZE,
    TOP,
    Layers,
    Runs,
    longer,
    new_layers,
    new_runs,
    set_layer,
    set_run,
)


@compiled
def modified_first_fit_decreasing(
    count: Counts, capacity: int, most_samples: int
) -> tuple[Layers, Runs]:
    """All five phases: layers in the order in which they were laid, runs in that of their bins."""
    left = count.copy()
    present = lengths_present(count)
    layers, layer_count, runs, bins = _open_bins_for_large(left, present, capacity)
    if most_samples >= 2:
        layers, layer_count, runs = _add_a_medium_each(
            left, present, capacity, layers, layer_count, runs
        )
    if most_samples >= 3:
        layers, layer_count, runs = _add_two_small_each(
            left, present, capacity, layers, layer_count, runs
        )
    layers, layer_count, runs = _fill_open_bins(
        left, present, capacity, most_samples, layers, layer_count, runs
    )
    layers, layer_count, runs, run_count = fill_new_bins(
        left, present, capacity, most_samples, layers, layer_count, runs, runs.shape[0], bins
    )
    return layers[:layer_count], runs[:run_count]


@compiled
def _open_bins_for_large(
    left: Counts, present: Bits, capacity: int
) -> tuple[Layers, int, Runs, int]:
    """Phase 1. Lengths are integers, so above C/2 means above C/2 rounded down."""
    samples = int(left.sum())
    layers, layer_count = new_layers(samples), 0
    runs = new_runs(samples)
    bins = 0
    length = at_most(present, capacity)
    while length > capacity // 2:
        taken = left[length]
        if layer_count == layers.shape[0]:
            layers = longer(layers, 0)
        if layer_count == runs.shape[0]:
            runs = longer(runs, 0)
        set_layer(layers, layer_count, length, 1, bins, taken, 1, 0, -1)
        set_run(runs, layer_count, bins, taken, layer_count, 1, capacity - length)
        take(left, present, length, taken)
        bins += taken
        layer_count += 1
        length = at_most(present, length)
    return layers, layer_count, runs[:layer_count], bins


@compiled
def _add_a_medium_each(
    left: Counts, present: Bits, capacity: int, layers: Layers, layer_count: int, runs: Runs
) -> tuple[Layers, int, Runs]:
    """Phase 2."""
    after = new_runs(runs.shape[0])
    run_count = 0
    for run in range(runs.shape[0]):
        first, bins, room, top = runs[run, FIRST], runs[run, BINS], runs[run, ROOM], runs[run, TOP]
        while bins > 0:
            if run_count == after.shape[0]:
                after = longer(after, 0)
            length = at_most(present, room)
            if length <= capacity // 3:
                set_run(after, run_count, first, bins, top, 1, room)
                run_count += 1
                break
            taken = min(bins, left[length])
            if layer_count == layers.shape[0]:
                layers = longer(layers, 0)
            set_layer(layers, layer_count, length, 1, first, taken, 1, 1, top)
            set_run(after, run_count, first, taken, layer_count, 2, room - length)
            take(left, present, length, taken)
            layer_count += 1
            run_count += 1
            first += taken
            bins -= taken
    return layers, layer_count, after[:run_count]


@compiled
def _pair(left: Counts, present: Bits, capacity: int, room: int) -> tuple[int, int]:
    """The shortest small length and the longest other small one beside it, or two zeros.

    A medium sample leaves less than C/6 beside a large one, so no pair fits there.
    """
    short = at_least(present, capacity // 6 + 1)
    if short < 0 or short >= room:
        return 0, 0
    long = at_most(present, room - short)
    # As long as the first, it could be the first itself; shorter, it is not small. With no small
    # one left the first is medium, and what fits beside it is always shorter.
    if long > short or (long == short and left[short] > 1):
        return short, long
    return 0, 0


@compiled
def _add_two_small_each(
    left: Counts, present: Bits, capacity: int, layers: Layers, layer_count: int, runs: Runs
) -> tuple[Layers, int, Runs]:
    """Phase 3, from the last bin to the first; so the layers are laid downwards."""
    after = new_runs(runs.shape[0])
    run_count = 0
    for run in range(runs.shape[0] - 1, -1, -1):
        first, bins = runs[run, FIRST], runs[run, BINS]
        size, room, top = runs[run, SIZE], runs[run, ROOM], runs[run, TOP]
        while bins > 0:
            if run_count == after.shape[0]:
                after = longer(after, 0)
            short, long = _pair(left, present, capacity, room)
            if short == 0:
                set_run(after, run_count, first, bins, top, size, room)
                run_count += 1
                break
            if layer_count + 2 > layers.shape[0]:
                layers = longer(layers, 0)
            taken = min(bins, left[short] // 2)
            if long != short:
                taken = min(bins, left[short], left[long])
            last = first + bins - 1
            set_layer(layers, layer_count, short, 1, last, taken, -1, 1, top)
            set_layer(layers, layer_count + 1, long, 1, last, taken, -1, 2, layer_count)
            if long == short:  # one layer, so that each bin gets its two before the next one does
                set_layer(layers, layer_count, short, 2, last, taken, -1, 1, top)
                layer_count -= 1
            set_run(
                after, run_count, last - taken + 1, taken, layer_count + 1, 3, room - short - long
            )
            take(left, present, short, taken)
            take(left, present, long, taken)
            layer_count += 2
            run_count += 1
            bins -= taken
    return layers, layer_count, after[:run_count][::-1].copy()


@compiled
def _fill_open_bins(
    left: Counts,
    present: Bits,
    capacity: int,
    most_samples: int,
    layers: Layers,
    layer_count: int,
    runs: Runs,
) -> tuple[Layers, int, Runs]:
    """Phase 4."""
    lengths = pattern_rows(capacity)
    per_bin = pattern_rows(capacity)
    after = new_runs(runs.shape[0])
    run_count = 0
    for run in range(runs.shape[0]):
        first, bins, room = runs[run, FIRST], runs[run, BINS], runs[run, ROOM]
        while bins > 0:
            size, below = runs[run, SIZE], runs[run, TOP]
            rows, times = longest_that_fit(
                left, present, room, most_samples - size, lengths, per_bin
            )
            taken = min(bins, times)
            if layer_count + rows > layers.shape[0]:
                layers = longer(layers, layer_count + rows)
            for row in range(rows):
                samples = per_bin[row]
                set_layer(layers, layer_count, lengths[row], samples, first, taken, 1, size, below)
                take(left, present, lengths[row], taken * samples)
                below = layer_count
                size += samples
                layer_count += 1
            if run_count == after.shape[0]:
                after = longer(after, 0)
            set_run(after, run_count, first, taken, below, size, 0)
            run_count += 1
            first += taken
            bins -= taken
    return layers, layer_count, after[:run_count]
