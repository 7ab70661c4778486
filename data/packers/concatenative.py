"""Next-fit: samples in their own order, one open bin at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.packers.base import Packer


@dataclass(frozen=True, kw_only=True)
class Concatenative(Packer):
    """Next-fit: fills one bin, and closes it for good at the first sample that does not fit.

    The bins one after the other are the input in its order, so a curriculum survives.

    Source: Johnson, "Fast algorithms for bin packing", J. Comput. Syst. Sci. 8 (1974).
    Guarantee: two neighbouring bins together hold more than one capacity, hence at most
    ``2 OPT - 1`` bins.
    Complexity: O(n).
    Ties: none to break; lengths are never compared with each other.

    Sample 2 opens bin 1 because 3 + 3 + 3 exceeds 6, and sample 3 opens bin 2 because 3 + 5 does:

    >>> Concatenative().pack([3, 3, 3, 5], capacity=6)
    [[0, 1], [2], [3]]
    """

    def _pack(self, lengths: npt.NDArray[np.int64], capacity: int) -> list[list[int]]:
        most_samples = self._most_samples(lengths)
        bins: list[list[int]] = []
        room = 0  # no bin is open yet, and every length is above 0
        for index, length in enumerate(lengths.tolist()):
            if length > room or len(bins[-1]) == most_samples:
                bins.append([])
                room = capacity
            bins[-1].append(index)
            room -= length
        return bins
