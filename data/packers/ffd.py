"""First-fit decreasing: the longest sample first, each into the first bin with room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.packers._first_fit import first_fit
from data.packers.base import Packer, longest_first


@dataclass(frozen=True, kw_only=True)
class FirstFitDecreasing(Packer):
    """First-fit decreasing: longest first, each into the lowest-numbered bin that has room.

    Source: Johnson, Demers, Ullman, Garey and Graham, "Worst-case performance bounds for simple
    one-dimensional packing algorithms", SIAM J. Comput. 3 (1974).
    Guarantee: at most ``11/9 OPT + 6/9`` bins, and that is tight (Dosa 2007).
    Complexity: O(n log n); a tree over the room left in the bins replaces the scan.
    Ties: of equal lengths the lower index goes first. Bins cannot tie, the first one is taken.

    The 8 and the 6 open bins 0 and 1, the 3 fits only bin 1, and the 1 fits both, so bin 0:

    >>> FirstFitDecreasing().pack([1, 3, 6, 8], capacity=10)
    [[3, 0], [2, 1]]
    """

    def _pack(self, lengths: npt.NDArray[np.int64], capacity: int) -> list[list[int]]:
        return first_fit(lengths, longest_first(lengths), capacity, self._most_samples(lengths))
