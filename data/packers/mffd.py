"""Modified first-fit decreasing: pairs small samples under the large ones before all else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.packers._length_pool import LengthPool
from data.packers.base import Packer


@dataclass(frozen=True, kw_only=True)
class ModifiedFirstFitDecreasing(Packer):
    """Modified first-fit decreasing, as published: better than FFD in the worst case.

    With ``C`` the capacity, a sample is large above C/2, medium above C/3, small above C/6, else
    tiny. Five phases:

    1. Each large sample opens a bin, the longest first.
    2. Forward over these bins: the longest medium sample that fits, at most one per bin.
    3. Backward over the bins without a medium one: if the two shortest small samples fit together,
       the shortest one and the longest other small one that still fits.
    4. Forward over all bins: the longest sample of any class that fits, until none does.
    5. First-fit decreasing of what is left, into new bins: no earlier bin has room for any of it.

    Some trainers that offer this name run worst-fit in the last phase, each sample into the
    emptiest bin. The guarantee below is proved for first-fit, so that is what runs here.

    Source: Johnson and Garey, "A 71/60 theorem for bin packing", J. Complexity 1 (1985).
    Guarantee: at most ``71/60 OPT + 1`` bins (the constant is that of Yue and Zhang 1995), where
    FFD can need 11/9.
    Complexity: O(n log n).
    Ties: of equal lengths the lower index goes first, also where the shortest one is wanted.

    The 51 takes a pair, 23 and 26, and is exactly full; FFD would have put the 27 beside it:

    >>> ModifiedFirstFitDecreasing().pack([51, 27, 26, 23, 23], capacity=100)
    [[0, 3, 2], [1, 4]]
    """

    def _pack(self, lengths: npt.NDArray[np.int64], capacity: int) -> list[list[int]]:
        packing = _Packing(lengths, capacity, self._most_samples(lengths))
        packing.open_bins_for_large()
        packing.add_a_medium_each()
        packing.add_two_small_each()
        packing.fill_open_bins()
        packing.fill_new_bins()
        return packing.bins


class _Packing:
    """The state that the five phases share.

    A bin opened for a large sample has less than C/2 of room, and less than C/3 beside a small
    one. So "the longest sample that fits" is never above the wanted class, only perhaps below it.
    """

    def __init__(self, lengths: npt.NDArray[np.int64], capacity: int, most_samples: int) -> None:
        self._pool = LengthPool(lengths)
        self._capacity = capacity
        self._most_samples = most_samples
        self.bins: list[list[int]] = []
        self._rooms: list[int] = []  # tokens left in each of them

    def open_bins_for_large(self) -> None:
        """Phase 1. Lengths are integers, so above C/2 means above C/2 rounded down."""
        while (length := self._pool.longest(at_most=self._capacity)) > self._capacity // 2:
            self.bins.append([])
            self._rooms.append(self._capacity)
            self._add(len(self.bins) - 1, length)

    def add_a_medium_each(self) -> None:
        """Phase 2."""
        if self._most_samples < 2:
            return
        for number, room in enumerate(self._rooms):
            medium = self._pool.longest(at_most=room)
            if medium > self._capacity // 3:
                self._add(number, medium)

    def add_two_small_each(self) -> None:
        """Phase 3."""
        if self._most_samples < 3:
            return
        above = self._capacity // 6
        for number in reversed(range(len(self.bins))):
            first = self._pool.shortest(above=above)
            # A medium sample leaves less than C/6 beside a large one, so such bins are passed over.
            if not 0 < first < self._rooms[number]:
                continue
            second = self._pool.longest(at_most=self._rooms[number] - first)
            # As long as the first, it could be the first itself; shorter, it is not small. (With no
            # small one left the first is medium, and what fits beside it is always shorter.)
            if second > first or (second == first and self._pool.count(first) > 1):
                self._add(number, first)
                self._add(number, second)

    def fill_open_bins(self) -> None:
        """Phase 4."""
        for samples, room in zip(self.bins, self._rooms, strict=True):
            self._pool.fill(samples, room, self._most_samples)

    def fill_new_bins(self) -> None:
        """Phase 5. First-fit decreasing fills its first bin with the longest that fit, and so on.

        That is the same packing as placing sample by sample, see ``GreedyKnapsack``.
        """
        while self._pool:
            self.bins.append([])
            self._pool.fill(self.bins[-1], self._capacity, self._most_samples)

    def _add(self, number: int, length: int) -> None:
        """Moves a sample of this length from the pool to a bin."""
        self.bins[number].append(self._pool.take(length))
        self._rooms[number] -= length
