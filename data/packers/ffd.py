"""First-fit decreasing: the longest sample first, each into the first bin with room."""

from __future__ import annotations

from dataclasses import dataclass

from data.packers._by_length import ByLength
from data.packers._fill import Counts, first_fit_decreasing
from data.packers._first_fit import first_fit
from data.packers._layers import Layers, Runs
from data.packers.items import Bins, Items


@dataclass(frozen=True, kw_only=True)
class FirstFitDecreasing(ByLength):
    """First-fit decreasing: longest first, each into the lowest-numbered bin that has room.

    Source: Johnson, Demers, Ullman, Garey and Graham, "Worst-case performance bounds for simple
    one-dimensional packing algorithms", SIAM J. Comput. 3 (1974).
    Guarantee: at most ``11/9 OPT + 6/9`` bins, and that is tight (Dosa 2007).
    Complexity: O(n). Of a histogram O(l), with ``l`` the number of layers. Items that differ in
    more than their lengths take O(n log n).
    Ties: of equal lengths the lower index goes first. Bins cannot tie, the first one is taken.

    The 8 and the 6 open bins 0 and 1, the 3 fits only bin 1, and the 1 fits both, so bin 0:

    >>> FirstFitDecreasing().pack([1, 3, 6, 8], capacity=10)
    [[3, 0], [2, 1]]
    """

    def _pack_histogram(
        self, count: Counts, capacity: int, most_samples: int
    ) -> tuple[Layers, Runs]:
        return first_fit_decreasing(count, capacity, most_samples)

    def _pack_items(self, items: Items, capacity: int, most_samples: int) -> Bins:
        return first_fit(items, items.longest_first(), capacity, most_samples)
