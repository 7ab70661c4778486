"""The samples still to be packed, to be asked for by length."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt


class LengthPool:
    """Samples grouped by length; of equal lengths, the lowest index leaves first.

    Samples only ever leave. So a length that has run out can point at its neighbour for good, and
    following the pointers, with the paths shortened on the way, takes nearly constant time. What
    remains of a look-up is a bisection over the distinct lengths.
    """

    def __init__(self, lengths: npt.NDArray[np.int64]) -> None:
        distinct, counts = np.unique(lengths, return_counts=True)
        ends = np.cumsum(counts)
        self._samples: list[int] = np.argsort(lengths, kind="stable").tolist()
        # Slot 0 and the slot after the last one stand for "there is no such sample".
        self._length: list[int] = [0, *distinct.tolist()]
        self._next: list[int] = [0, *(ends - counts).tolist()]
        self._end: list[int] = [0, *ends.tolist()]
        self._down = list(range(len(self._length) + 1))
        self._up = list(range(len(self._length) + 1))
        self._left = lengths.size

    def __len__(self) -> int:
        return self._left

    def longest(self, *, at_most: int) -> int:
        """The longest length left that is at most ``at_most`` tokens, or 0."""
        return self._length[_follow(self._down, bisect_right(self._length, at_most) - 1)]

    def shortest(self, *, above: int) -> int:
        """The shortest length left that is above ``above`` (0 or more) tokens, or 0."""
        slot = _follow(self._up, bisect_right(self._length, above))
        return self._length[slot] if slot < len(self._length) else 0

    def count(self, length: int) -> int:
        """How many samples of exactly this length, which the pool began with, are left."""
        slot = bisect_left(self._length, length)
        return self._end[slot] - self._next[slot]

    def take(self, length: int) -> int:
        """Removes a sample of exactly this length, of which some must be left; its index."""
        slot = bisect_left(self._length, length)
        index = self._samples[self._next[slot]]
        self._next[slot] += 1
        self._left -= 1
        if self._next[slot] == self._end[slot]:
            self._down[slot] = slot - 1
            self._up[slot] = slot + 1
        return index

    def fill(self, samples: list[int], room: int, most_samples: int) -> None:
        """Moves the longest sample that fits into a bin, again and again until none does.

        Args:
            samples: the indices in the bin so far; extended in place.
            room: the tokens that still fit into it.
            most_samples: the bin is full with this many samples.
        """
        while len(samples) < most_samples and (length := self.longest(at_most=room)):
            samples.append(self.take(length))
            room -= length


def _follow(pointers: list[int], slot: int) -> int:
    """The slot that the pointers lead to; every slot on the way then points straight at it."""
    end = slot
    while pointers[end] != end:
        end = pointers[end]
    while pointers[slot] != end:
        pointers[slot], slot = end, pointers[slot]
    return end
