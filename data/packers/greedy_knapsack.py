"""Greedy knapsack: fills one bin at a time with the longest samples that fit."""

from __future__ import annotations

from dataclasses import dataclass

from data.packers._by_length import ByLength
from data.packers._fill import Counts, first_fit_decreasing
from data.packers._first_fit import first_fit
from data.packers._layers import Layers, Runs
from data.packers.items import Bins, Items


@dataclass(frozen=True, kw_only=True)
class GreedyKnapsack(ByLength):
    """Fills one bin with the longest remaining sample that fits until none does, then the next.

    The bins are those of first-fit decreasing, in the same order: in both, bin 0 gets whatever it
    still takes in the order of decreasing length, bin 1 gets that of the rest, and so on. It is
    here under its own name because recipes ask for it by that name.

    Source: the greedy knapsack of Megatron-LM's multimodal examples.
    Guarantee: that of first-fit decreasing, at most ``11/9 OPT + 6/9`` bins (Dosa 2007).
    Complexity: that of first-fit decreasing, O(n).
    Ties: of equal lengths the lower index goes first.

    The 6 leaves 4 of room, which the 4 takes; the 5, the 3 and the 2 are left for bin 1:

    >>> GreedyKnapsack().pack([6, 5, 4, 3, 2], capacity=10)
    [[0, 2], [1, 3, 4]]
    """

    def _pack_histogram(
        self, count: Counts, capacity: int, most_samples: int
    ) -> tuple[Layers, Runs]:
        return first_fit_decreasing(count, capacity, most_samples)

    def _pack_items(self, items: Items, capacity: int, most_samples: int) -> Bins:
        return first_fit(items, items.longest_first(), capacity, most_samples)
