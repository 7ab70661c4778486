"""Balanced greedy knapsack: spreads samples over a preset number of bins, evenly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data.packers._apart import Apart, Lengths, Numbers, mark_bins, new_apart, note_bin, to_bins
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

_LOAD = 32  # a key is the load, then the bin: the emptiest, and of those the first, has the lowest


@dataclass(frozen=True, kw_only=True)
class BalancedGreedyKnapsack(ByLength):
    """Opens a number of bins at once, then gives each sample, longest first, to the emptiest bin.

    It starts with ``ceil(tokens / capacity) + delta`` bins. A sample that does not fit the
    emptiest bin fits none, and opens one more. A bin that is full by its number of samples is out
    of the choice. Bins that stayed empty are left out of the answer.

    ``delta`` trades fill for evenness: the same samples, over more bins.

    Source: the balanced greedy knapsack of Megatron-LM's multimodal examples. It is worst-fit
    decreasing, with bins open from the beginning.
    Guarantee: either no more bins than it starts with, or fewer than ``2 tokens / capacity + 1``,
    since it opens another one only when all are more than half full.
    Complexity: O(n log n). Of a histogram O(l log l), with ``l`` the number of layers.
    Ties: of equal lengths the lower index goes first; of equally empty bins, the first opened.

    Sixteen tokens start two bins of 8, which take turns; one bin more would have taken a turn too:

    >>> BalancedGreedyKnapsack().pack([4, 4, 4, 4], capacity=8)
    [[0, 2], [1, 3]]
    >>> BalancedGreedyKnapsack(delta=1).pack([4, 4, 4, 4], capacity=8)
    [[0, 3], [1], [2]]

    Attributes:
        delta: how many bins to start with beyond ``ceil(tokens / capacity)``, 0 or more.

    Raises:
        ValueError: if ``delta`` is negative.
    """

    delta: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta < 0:
            raise ValueError(f"delta must be 0 or more, got {self.delta}")

    def _pack_histogram(
        self, count: Counts, capacity: int, most_samples: int
    ) -> tuple[Layers, Runs]:
        tokens = int((np.arange(count.size) * count).sum())
        bins = self._bins_to_start_with(tokens, capacity)
        layers, runs = _worst_fit_decreasing(count, capacity, most_samples, bins)
        return layers, in_order_of_bins(runs)

    def _pack_items(self, items: Items, capacity: int, most_samples: int) -> Bins:
        order = items.longest_first()
        bin_of = np.empty(order.size, np.int32)
        bins = _worst_fit(
            items.lengths,
            items.sizes,
            order,
            capacity,
            most_samples,
            new_apart(items),
            bin_of,
            self._bins_to_start_with(int(items.lengths.sum(dtype=np.int64)), capacity),
        )
        return to_bins(order, bin_of, bins)

    def _bins_to_start_with(self, tokens: int, capacity: int) -> int:
        return -(-tokens // capacity) + self.delta


@compiled
def _worst_fit_decreasing(
    count: Counts, capacity: int, most_samples: int, bins: int
) -> tuple[Layers, Runs]:
    """One heap of runs, the emptiest on top.

    The bins of the emptiest run take one sample each, in turn. A bin that has to be opened is, as
    long as it has room for another sample of the length, emptier than all the others, which have
    none; so it takes as many as fit.
    """
    samples = int(count.sum())
    layers, layer_count = new_layers(samples), 0
    runs, run_count = new_runs(samples), 0
    bins = min(bins, samples)  # an empty bin is the emptiest, so more of them would stay empty
    top = -1
    if bins > 0:
        set_run(runs, 0, 0, bins, -1, 0, 0)
        set_alone(runs, 0, 0)
        top = 0
        run_count = 1
    for length in range(capacity, 0, -1):
        left = count[length]
        while left > 0:
            if layer_count == layers.shape[0]:
                layers = longer(layers, 0)
            if run_count == runs.shape[0]:
                runs = longer(runs, 0)
            if top < 0 or (runs[top, KEY] >> _LOAD) + length > capacity:
                run = run_count
                run_count += 1
                per_bin = min(capacity // length, most_samples, left)
                taken = left // per_bin
                first, load, size, below = bins, 0, 0, -1
                bins += taken
            else:
                run = top
                per_bin = 1
                taken = min(runs[run, BINS], left)
                first, load = runs[run, FIRST], runs[run, KEY] >> _LOAD
                size, below = runs[run, SIZE], runs[run, TOP]
                if taken < runs[run, BINS]:  # the rest stays where it is
                    runs[run, FIRST] += taken
                    runs[run, BINS] -= taken
                    runs[run, KEY] += taken
                    run = run_count
                    run_count += 1
                else:
                    top = without_top(runs, run)
            set_layer(layers, layer_count, length, per_bin, first, taken, 1, size, below)
            set_run(runs, run, first, taken, layer_count, size + per_bin, 0)
            set_alone(runs, run, ((load + per_bin * length) << _LOAD) + first)
            layer_count += 1
            left -= taken * per_bin
            if size + per_bin < most_samples:
                top = meld(runs, top, run)
    return layers[:layer_count], runs[:run_count]


@compiled
def _worst_fit(
    lengths: Lengths,
    sizes: Numbers,
    order: Numbers,
    capacity: int,
    most_samples: int,
    apart: Apart,
    bin_of: Numbers,
    bins: int,
) -> int:
    """One heap of bins, the emptiest on top: the key is the load, then the number of the bin."""
    grouped = sizes.size > 0
    bins = min(bins, order.size)  # an empty bin is the emptiest: the others stay so
    heaps = longer(new_runs(0), order.size + 1)
    held = np.zeros(order.size, np.int32)
    kept_apart = apart[0].size > 0
    marked = np.zeros(order.size if kept_apart else 0, np.int32)
    top = -1
    for bin_number in range(bins):
        set_alone(heaps, bin_number, bin_number)
        top = meld(heaps, top, bin_number)
    for turn in range(order.size):
        item = order[turn]
        size = sizes[item] if grouped else 1
        if kept_apart:
            mark_bins(apart, item, marked)
        chosen = -1
        refused = -1
        while top >= 0 and chosen < 0:
            candidate = top
            if (heaps[candidate, KEY] >> _LOAD) + lengths[item] > capacity:
                break  # and so are all others
            top = without_top(heaps, top)
            if (kept_apart and marked[candidate] == item + 1) or (
                held[candidate] + size > most_samples
            ):
                refused = meld(heaps, refused, candidate)
            else:
                chosen = candidate
        top = meld(heaps, top, refused)
        if chosen < 0:
            chosen = bins
            set_alone(heaps, bins, bins)
            bins += 1
        bin_of[turn] = chosen
        if kept_apart:
            note_bin(apart, item, chosen)
        held[chosen] += size
        heaps[chosen, KEY] += np.int64(lengths[item]) << _LOAD
        if held[chosen] < most_samples:
            top = meld(heaps, top, chosen)
    return bins
