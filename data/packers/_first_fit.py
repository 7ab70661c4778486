"""First fit in any order, with a tree in place of the scan over the bins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def first_fit(
    lengths: npt.NDArray[np.int64], order: Sequence[int], capacity: int, most_samples: int
) -> list[list[int]]:
    """Puts each sample into the first bin with room for it, opening one where there is none.

    Args:
        lengths: int64 ``[n]``, in tokens, each in ``[1, capacity]``.
        order: the indices ``0 .. n - 1`` in the order in which the samples are placed.
        capacity: the most tokens a bin may hold.
        most_samples: a bin with this many samples is full.

    Returns:
        The bins in the order of opening. It takes O(n log n) time.
    """
    sizes: list[int] = lengths.tolist()
    rooms = _Rooms(len(sizes), capacity)
    bins: list[list[int]] = []
    for index in order:
        number = rooms.first(sizes[index])
        if number == len(bins):
            bins.append([])
        bins[number].append(index)
        full = len(bins[number]) == most_samples
        rooms.set(number, 0 if full else rooms.of(number) - sizes[index])
    return bins


class _Rooms:
    """The room left in each of ``count`` bins, as a tree in which a node holds its subtree's most.

    Bins that are not yet open are leaves with the whole capacity as their room. First fit opens
    bins from left to right, so the search finds the next one to open without a special case.
    """

    def __init__(self, count: int, capacity: int) -> None:
        self._leaves = 1 << (count - 1).bit_length()
        self._most = [capacity] * (2 * self._leaves)  # root at 1, children of i at 2i and 2i + 1

    def of(self, number: int) -> int:
        """The room left in a bin, in tokens."""
        return self._most[self._leaves + number]

    def first(self, length: int) -> int:
        """The lowest number of a bin with room for ``length`` tokens; there must be one."""
        node = 1
        while node < self._leaves:
            node *= 2
            if self._most[node] < length:
                node += 1
        return node - self._leaves

    def set(self, number: int, room: int) -> None:
        """Records the room left in a bin, in tokens."""
        node = self._leaves + number
        self._most[node] = room
        while node > 1:
            node //= 2
            most = max(self._most[2 * node], self._most[2 * node + 1])
            if self._most[node] == most:
                return  # nothing changes further up
            self._most[node] = most
