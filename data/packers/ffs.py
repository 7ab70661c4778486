"""First-fit shuffle: samples in a random order, each into the first bin with room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.packers._first_fit import first_fit
from data.packers.base import Packer


@dataclass(frozen=True, kw_only=True)
class FirstFitShuffle(Packer):
    """First-fit in a random order: bins that mix lengths, instead of long ones first.

    The order of ``n`` samples is ``numpy.random.default_rng(seed).permutation(n)``: a generator of
    its own for every call. So the same call gives the same bins after any restart, two inputs of
    the same size are shuffled alike, and the global random state is neither read nor moved.

    Source: first-fit as in Johnson, "Fast algorithms for bin packing", J. Comput. Syst. Sci. 8
    (1974).
    Guarantee: at most ``1.7 OPT`` bins, rounded down (Dosa and Sgall 2013), in any order.
    Complexity: O(n log n); a tree over the room left in the bins replaces the scan.
    Ties: none to break; lengths are not compared, and the first bin with room is taken.

    In any order, the 4 and the 6 meet and the 7 stays alone; only the order changes:

    >>> sorted(sorted(samples) for samples in FirstFitShuffle(seed=1).pack([4, 6, 7], capacity=10))
    [[0, 1], [2]]

    Attributes:
        seed: decides the order, 0 or more.

    Raises:
        ValueError: if the seed is negative.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more, got {self.seed}")

    def _pack(self, lengths: npt.NDArray[np.int64], capacity: int) -> list[list[int]]:
        order = np.random.default_rng(self.seed).permutation(lengths.size).tolist()
        return first_fit(lengths, order, capacity, self._most_samples(lengths))
