"""Best-fit decreasing: the longest sample first, each into the tightest bin with room."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from data.packers.base import Packer, longest_first


@dataclass(frozen=True, kw_only=True)
class BestFitDecreasing(Packer):
    """Best-fit decreasing: longest first, each into the bin that it leaves the least room in.

    Source: Johnson, Demers, Ullman, Garey and Graham, "Worst-case performance bounds for simple
    one-dimensional packing algorithms", SIAM J. Comput. 3 (1974).
    Guarantee: at most ``11/9 OPT + 4`` bins.
    Complexity: O(n log n), plus moving part of a sorted list of the distinct rooms (at most
    ``min(n, capacity)`` machine words) when one appears or disappears.
    Ties: of equal lengths the lower index goes first; of equally tight bins, the first opened.

    The 8 and the 6 open bins 0 and 1, the 3 fits only bin 1 and leaves it 1 of room, which is
    tighter for the last sample than the 2 of bin 0:

    >>> BestFitDecreasing().pack([1, 3, 6, 8], capacity=10)
    [[3], [2, 1, 0]]
    """

    def _pack(self, lengths: npt.NDArray[np.int64], capacity: int) -> list[list[int]]:
        most_samples = self._most_samples(lengths)
        sizes: list[int] = lengths.tolist()
        rooms = _OpenBins(least_useful=min(sizes))
        bins: list[list[int]] = []
        for index in longest_first(lengths):
            found = rooms.take_tightest(sizes[index])
            if found is None:
                found = capacity, len(bins)
                bins.append([])
            room, number = found
            bins[number].append(index)
            if len(bins[number]) < most_samples:
                rooms.put(room - sizes[index], number)
        return bins


class _OpenBins:
    """Bins by the room left in them, without those that no sample can fit any more."""

    def __init__(self, least_useful: int) -> None:
        self._least_useful = least_useful
        self._rooms: list[int] = []  # the distinct ones, ascending
        self._numbers: dict[int, list[int]] = {}  # a heap of bin numbers for each of them

    def put(self, room: int, number: int) -> None:
        """Adds a bin that has ``room`` tokens left."""
        if room < self._least_useful:
            return
        if room not in self._numbers:
            insort(self._rooms, room)
            self._numbers[room] = []
        heappush(self._numbers[room], number)

    def take_tightest(self, length: int) -> tuple[int, int] | None:
        """Removes the bin with the least room for ``length`` tokens: its room and its number."""
        at = bisect_left(self._rooms, length)
        if at == len(self._rooms):
            return None
        room = self._rooms[at]
        number = heappop(self._numbers[room])
        if not self._numbers[room]:
            del self._numbers[room], self._rooms[at]
        return room, number
