"""First-fit shuffle: samples in a random order, each into the first bin with room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.packers._apart import Numbers
from data.packers._compile import compiled
from data.packers._fill import Counts
from data.packers._first_fit import first_fit
from data.packers._layers import count_lengths, sort_by_length
from data.packers.base import Packer
from data.packers.items import Bins, Items


@dataclass(frozen=True, kw_only=True)
class FirstFitShuffle(Packer):
    """First-fit in a random order: bins that mix lengths, instead of long ones first.

    The order depends on the seed and the number of samples only: a generator of its own for every
    call, so that the same call gives the same bins after any restart, two inputs of the same size
    are shuffled alike, and the global random state is neither read nor moved. It is that of Fisher
    and Yates; more than 65,536 samples are dealt to piles at random first, each of which a
    processor's cache can hold (Rao 1961; Sandelius 1962).

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

    def _pack(self, items: Items, capacity: int) -> Bins:
        order = _shuffled(items.lengths.size, self.seed)
        return first_fit(items, order, capacity, self._most_samples(items.samples))


_PILE = 1 << 16


def _shuffled(n: int, seed: int) -> Numbers:
    """The numbers ``0 .. n - 1`` in random order, int32 ``[n]``. O(n)."""
    random = np.random.default_rng(seed)
    piles = -(-n // _PILE)
    order = np.arange(n, dtype=np.int32)
    count = np.array([n])
    if piles > 1:
        pile = random.integers(piles, size=n, dtype=np.int32)
        count, _ = count_lengths(pile, piles - 1)
        sort_by_length(pile, count, order)
    _shuffle_piles(order, count, random.integers(2**32, size=n, dtype=np.uint32))
    return order


@compiled
def _shuffle_piles(order: Numbers, count: Counts, random: npt.NDArray[np.uint32]) -> None:
    """Shuffles adjacent piles of ``count`` numbers each, by one random number for each place.

    A product in place of a remainder makes a number in ``[0, left)`` of one in ``[0, 2**32)``: none
    is likelier than another by more than ``left / 2**32``.
    """
    begin = 0
    for pile in range(count.size):
        for left in range(count[pile], 1, -1):
            last = begin + left - 1
            chosen = begin + np.int64((np.uint64(random[last]) * np.uint64(left)) >> np.uint64(32))
            order[last], order[chosen] = order[chosen], order[last]
        begin += count[pile]
