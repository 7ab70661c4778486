"""Minimum bin slack on a histogram: one bin after the other, each as full as a short search finds.

Gupta and Ho ("A new heuristic algorithm for the one-dimensional bin-packing problem", Production
Planning & Control 10, 1999) fill a bin by the subset that leaves the least slack; Fleszar and Hindi
("New heuristics for one-dimensional bin-packing", Computers & Operations Research 29, 2002) fix the
longest item in it first. Here a subset has at most three samples, of which the first two are tried
from the longest on, within a budget; then the bin is looked at again.

A larger budget finds fuller bins and may use up the short samples too early: neither is best.
"""

from __future__ import annotations

from data.packers._bits import Bits, at_least, at_most
from data.packers._compile import compiled
from data.packers._fill import Counts, pattern_rows, take
from data.packers._layers import Layers, Runs, longer, set_layer, set_run


@compiled
def _still_there(left: Counts, used: Counts, present: Bits, bound: int) -> int:
    """The longest length of at most ``bound`` of which the bin has not used all, or 0."""
    length = at_most(present, bound) if bound > 0 else 0
    while length > 0 and left[length] <= used[length]:
        length = at_most(present, length - 1)
    return max(length, 0)


@compiled
def _least_slack(
    left: Counts, used: Counts, present: Bits, room: int, slots: int, budget: int
) -> tuple[int, int, int]:
    """Up to three lengths, the first at least the second and so on, or 0, that fill a room best."""
    shortest = at_least(present, 1)
    first = _still_there(left, used, present, room)
    best = (first, 0, 0)
    slack = room - first
    tries = 0
    while first > 0 and slack > 0 and tries < budget and slots > 1:
        used[first] += 1
        second = _still_there(left, used, present, min(room - first, first))
        seconds = 0
        while second > 0 and slack > 0 and seconds < budget:
            rest = room - first - second
            if rest < slack:
                slack = rest
                best = (first, second, 0)
            if rest >= shortest and slots > 2:
                used[second] += 1
                third = _still_there(left, used, present, min(rest, second))
                used[second] -= 1
                if third > 0 and rest - third < slack:
                    slack = rest - third
                    best = (first, second, third)
            tries += 1
            seconds += 1
            second = _still_there(left, used, present, second - 1)
        used[first] -= 1
        tries += 1
        first = _still_there(left, used, present, first - 1)
    return best


@compiled
def fill_with_least_slack(
    left: Counts,
    present: Bits,
    capacity: int,
    most_samples: int,
    budget: int,
    layers: Layers,
    layer_count: int,
    runs: Runs,
    run_count: int,
    bins: int,
) -> tuple[Layers, int, Runs, int]:
    """Packs all that is left into new bins; as ``fill_new_bins`` does, but for the choice.

    Args:
        left: samples of each length, ``[capacity + 1]``; afterwards all 0.
        present: the lengths of which there are any; afterwards empty.
        capacity: in tokens.
        most_samples: a bin with this many samples is full.
        budget: how many combinations of two to try before a bin takes the best it has seen.
        layers: is extended; there are ``layer_count`` so far.
        layer_count: see there.
        runs: is extended; there are ``run_count`` so far.
        run_count: see there.
        bins: how many there are so far.

    Returns:
        The layers and how many there are, the runs and how many there are. It takes
        O(patterns * budget) time.
    """
    used = left * 0
    pattern = pattern_rows(capacity)
    while True:
        longest = at_most(present, capacity)
        if longest <= 0:
            return layers, layer_count, runs, run_count
        rows = 0
        size = 0
        room = capacity
        lengths = (longest, 0, 0)
        while lengths[0] > 0:
            for length in lengths:
                if length > 0:
                    if used[length] == 0:
                        pattern[rows] = length
                        rows += 1
                    used[length] += 1
                    room -= length
                    size += 1
            lengths = (0, 0, 0)
            if room > 0 and size < most_samples:
                lengths = _least_slack(left, used, present, room, most_samples - size, budget)
        times = left[longest]
        for row in range(rows):
            times = min(times, left[pattern[row]] // used[pattern[row]])
        if layer_count + rows > layers.shape[0]:
            layers = longer(layers, layer_count + rows)
        if run_count == runs.shape[0]:
            runs = longer(runs, 0)
        below = -1
        size = 0
        for row in range(rows):
            length = pattern[row]
            samples = used[length]
            used[length] = 0
            set_layer(layers, layer_count, length, samples, bins, times, 1, size, below)
            take(left, present, length, times * samples)
            below = layer_count
            size += samples
            layer_count += 1
        set_run(runs, run_count, bins, times, below, size, 0)
        run_count += 1
        bins += times
