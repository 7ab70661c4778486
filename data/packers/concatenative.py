"""Next-fit: samples in their own order, one open bin at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.packers._apart import Apart, Lengths, Numbers, mark_bins, new_apart, note_bin
from data.packers._compile import compiled
from data.packers.base import Packer
from data.packers.items import Bins, Items


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

    def _pack(self, items: Items, capacity: int) -> Bins:
        n = items.lengths.size
        most_samples = self._most_samples(items.samples)
        offsets = np.empty(n + 1, np.int64)  # what of it is not used takes no memory
        if most_samples < n or items.have_groups() or items.stay_apart():
            bins = _next_fit_constrained(
                items.lengths, items.sizes, capacity, most_samples, new_apart(items), offsets
            )
        else:
            bins = _next_fit(items.lengths, capacity, offsets)
        return np.arange(n, dtype=np.int32), offsets[: bins + 1]


@compiled
def _next_fit(lengths: Lengths, capacity: int, offsets: npt.NDArray[np.int64]) -> int:
    """Fills in where each bin begins, and the end; how many bins there are."""
    bins = 0
    room = 0  # no bin is open yet, and every length is above 0
    for item in range(lengths.size):
        room -= lengths[item]
        if room < 0:
            offsets[bins] = item
            bins += 1
            room = capacity - lengths[item]
    offsets[bins] = lengths.size
    return bins


@compiled
def _next_fit_constrained(
    lengths: Lengths,
    sizes: Numbers,
    capacity: int,
    most_samples: int,
    apart: Apart,
    offsets: npt.NDArray[np.int64],
) -> int:
    """As ``_next_fit``, where more than room decides."""
    kept_apart = apart[0].size > 0
    marked = np.zeros(lengths.size if kept_apart else 0, np.int32)
    bins = 0
    room = 0  # no bin is open yet, and every length is above 0
    held = 0
    for item in range(lengths.size):
        size = sizes[item] if sizes.size else 1
        if kept_apart:
            mark_bins(apart, item, marked)
        refused = bins > 0 and kept_apart and marked[bins - 1] == item + 1
        if lengths[item] > room or held + size > most_samples or refused:
            offsets[bins] = item
            bins += 1
            room = capacity
            held = 0
        room -= lengths[item]
        held += size
        if kept_apart:
            note_bin(apart, item, bins - 1)
    offsets[bins] = lengths.size
    return bins
