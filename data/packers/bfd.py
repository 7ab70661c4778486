"""Best-fit decreasing: the longest sample first, each into the tightest bin with room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data.packers._apart import Apart, Lengths, Numbers, mark_bins, new_apart, note_bin, to_bins
from data.packers._bits import add, at_least, empty_set, remove
from data.packers._by_length import ByLength
from data.packers._compile import compiled
from data.packers._fill import Counts
from data.packers._layers import (
    BINS,
    FIRST,
    KEY,
    SIZE,
    TOP,
    Layers,
    Runs,
    in_order_of_bins,
    longer,
    meld,
    new_layers,
    new_runs,
    set_alone,
    set_layer,
    set_run,
    without_top,
)
from data.packers.items import Bins, Items


@dataclass(frozen=True, kw_only=True)
class BestFitDecreasing(ByLength):
    """Best-fit decreasing: longest first, each into the bin that it leaves the least room in.

    Source: Johnson, Demers, Ullman, Garey and Graham, "Worst-case performance bounds for simple
    one-dimensional packing algorithms", SIAM J. Comput. 3 (1974).
    Guarantee: at most ``11/9 OPT + 4`` bins.
    Complexity: O(n log n). Of a histogram O(l log l), with ``l`` the number of layers.
    Ties: of equal lengths the lower index goes first; of equally tight bins, the first opened.

    The 8 and the 6 open bins 0 and 1, the 3 fits only bin 1 and leaves it 1 of room, which is
    tighter for the last sample than the 2 of bin 0:

    >>> BestFitDecreasing().pack([1, 3, 6, 8], capacity=10)
    [[3], [2, 1, 0]]
    """

    def _pack_histogram(
        self, count: Counts, capacity: int, most_samples: int
    ) -> tuple[Layers, Runs]:
        layers, runs = _best_fit_decreasing(count, capacity, most_samples)
        return layers, in_order_of_bins(runs)

    def _pack_items(self, items: Items, capacity: int, most_samples: int) -> Bins:
        return best_fit(items, items.longest_first(), capacity, most_samples)


@compiled
def _best_fit_decreasing(count: Counts, capacity: int, most_samples: int) -> tuple[Layers, Runs]:
    """A heap of runs, the lowest bin on top, for each room that a bin can have.

    A bin that has taken a sample of some length is, as long as it has room for another one of them,
    the tightest: any bin that has less room than it had before has too little. So it takes them
    until no more fits, and the bins of a run take the same.
    """
    samples = int(count.sum())
    layers, layer_count = new_layers(samples), 0
    runs, run_count = new_runs(samples), 0
    bins = 0
    top = np.full(capacity + 1, -1, np.int32)  # of the heap of each room
    rooms = empty_set(capacity + 1)
    for length in range(capacity, 0, -1):
        left = count[length]
        while left > 0:
            if layer_count == layers.shape[0]:
                layers = longer(layers, 0)
            if run_count == runs.shape[0]:
                runs = longer(runs, 0)
            room = at_least(rooms, length)
            size, below = 0, -1
            if room < 0:
                room = capacity
                available = left
                first = bins
            else:
                run = top[room]
                size, below = runs[run, SIZE], runs[run, TOP]
                available = runs[run, BINS]
                first = runs[run, FIRST]
            per_bin = min(room // length, most_samples - size, left)
            taken = min(available, left // per_bin)
            if size == 0:
                bins += taken
                run = run_count
                run_count += 1
            elif taken < available:  # the rest stays where it is
                runs[run, FIRST] += taken
                runs[run, BINS] -= taken
                runs[run, KEY] = runs[run, FIRST]
                run = run_count
                run_count += 1
            else:
                top[room] = without_top(runs, run)
                if top[room] < 0:
                    remove(rooms, room)
            set_layer(layers, layer_count, length, per_bin, first, taken, 1, size, below)
            set_run(runs, run, first, taken, layer_count, size + per_bin, 0)
            set_alone(runs, run, first)
            layer_count += 1
            left -= taken * per_bin
            room -= per_bin * length
            if room > 0 and size + per_bin < most_samples:
                if top[room] < 0:
                    add(rooms, room)
                top[room] = meld(runs, top[room], run)
    return layers[:layer_count], runs[:run_count]


def best_fit(items: Items, order: Numbers, capacity: int, most_samples: int) -> Bins:
    """Puts each item into the bin that it leaves the least room in; of equal ones, the first.

    Args:
        items: what to pack.
        order: in which order, ``[n]``.
        capacity: in tokens.
        most_samples: a bin with this many samples is full.

    Returns:
        The bins in the order of opening. It takes O(n log n) time, plus moving a part of a sorted
        list of the different rooms, at most ``min(bins, capacity)``, when one comes or goes.
    """
    bin_of = np.empty(order.size, np.int32)
    bins = _best_fit(
        items.lengths, items.sizes, order, capacity, most_samples, new_apart(items), bin_of
    )
    return to_bins(order, bin_of, bins)


@compiled
def _best_fit(
    lengths: Lengths,
    sizes: Numbers,
    order: Numbers,
    capacity: int,
    most_samples: int,
    apart: Apart,
    bin_of: Numbers,
) -> int:
    """A heap of bins, the first opened on top, for each room that a bin has left."""
    grouped = sizes.size > 0
    shortest = lengths.min()
    heaps = new_runs(order.size)  # bins as rows
    rooms = np.empty(64, np.int64)
    tops = np.empty(64, np.int64)
    kinds = 0  # how many different rooms, in ascending order
    held = np.zeros(order.size, np.int32)
    kept_apart = apart[0].size > 0
    marked = np.zeros(order.size if kept_apart else 0, np.int32)
    bins = 0
    for turn in range(order.size):
        item = order[turn]
        size = sizes[item] if grouped else 1
        if kept_apart:
            mark_bins(apart, item, marked)
        chosen = -1
        room = capacity
        at = np.searchsorted(rooms[:kinds], lengths[item])
        while at < kinds and chosen < 0:
            top = tops[at]
            refused = -1
            while top >= 0 and chosen < 0:
                candidate = top
                top = without_top(heaps, top)
                if (kept_apart and marked[candidate] == item + 1) or (
                    held[candidate] + size > most_samples
                ):
                    refused = meld(heaps, refused, candidate)
                else:
                    chosen = candidate
                    room = rooms[at]
            tops[at] = meld(heaps, top, refused)
            if tops[at] < 0:
                rooms[at : kinds - 1] = rooms[at + 1 : kinds]
                tops[at : kinds - 1] = tops[at + 1 : kinds]
                kinds -= 1
            else:
                at += 1
        if chosen < 0:
            chosen = bins
            if bins == heaps.shape[0]:
                heaps = longer(heaps, 0)
            set_alone(heaps, bins, bins)
            bins += 1
        bin_of[turn] = chosen
        if kept_apart:
            note_bin(apart, item, chosen)
        held[chosen] += size
        room -= lengths[item]
        if room >= shortest and held[chosen] < most_samples:
            at = np.searchsorted(rooms[:kinds], room)
            if at < kinds and rooms[at] == room:
                tops[at] = meld(heaps, tops[at], chosen)
                continue
            if kinds == rooms.size:
                rooms = np.concatenate((rooms, np.empty_like(rooms)))
                tops = np.concatenate((tops, np.empty_like(tops)))
            rooms[at + 1 : kinds + 1] = rooms[at:kinds].copy()
            tops[at + 1 : kinds + 1] = tops[at:kinds].copy()
            rooms[at] = room
            tops[at] = chosen
            kinds += 1
    return bins
