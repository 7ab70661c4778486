"""Modified first-fit decreasing: pairs small samples under the large ones before all else."""

from __future__ import annotations

from dataclasses import dataclass

from data.packers._by_length import ByLength
from data.packers._fill import Counts
from data.packers._layers import Layers, Runs
from data.packers._mffd_by_length import modified_first_fit_decreasing
from data.packers._mffd_items import modified_first_fit
from data.packers.items import Bins, Items


@dataclass(frozen=True, kw_only=True)
class ModifiedFirstFitDecreasing(ByLength):
    """Modified first-fit decreasing, as published: better than FFD in the worst case.

    With ``C`` the capacity, a sample is large above C/2, medium above C/3, small above C/6, else
    tiny. Five phases:

    1. Each large sample opens a bin, the longest first.
    2. Forward over these bins: the longest medium sample that fits, at most one per bin.
    3. Backward over the bins without a medium one: if the two shortest small samples fit together,
       the shortest one and the longest other small one that still fits.
    4. Forward over all bins: the longest sample of any class that fits, until none does.
    5. First-fit decreasing of what is left, into new bins: no earlier bin has room for any of it.

    Some trainers that offer this name (NeMo RL among them) run worst-fit in the last phase, each
    sample into the emptiest bin. The guarantee below is proved for first-fit, so that is what runs
    here.

    Source: Johnson and Garey, "A 71/60 theorem for bin packing", J. Complexity 1 (1985).
    Guarantee: at most ``71/60 OPT + 1`` bins (the constant is that of Yue and Zhang 1995), where
    FFD can need 11/9.
    Complexity: O(n). Of a histogram O(l), with ``l`` the number of layers. Items that differ in
    more than their lengths take O(n log n).
    Ties: of equal lengths the lower index goes first, also where the shortest one is wanted.

    The 51 takes a pair, 23 and 26, and is exactly full; FFD would have put the 27 beside it:

    >>> ModifiedFirstFitDecreasing().pack([51, 27, 26, 23, 23], capacity=100)
    [[0, 3, 2], [1, 4]]
    """

    def _pack_histogram(
        self, count: Counts, capacity: int, most_samples: int
    ) -> tuple[Layers, Runs]:
        return modified_first_fit_decreasing(count, capacity, most_samples)

    def _pack_items(self, items: Items, capacity: int, most_samples: int) -> Bins:
        return modified_first_fit(items, capacity, most_samples)
