"""Packers that take samples longest first: the histogram of lengths decides, not the samples."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from data.packers._layers import (
    Layers,
    Runs,
    bin_count,
    count_lengths,
    place_samples,
    set_offsets,
    sort_by_length,
)
from data.packers.base import Packer
from data.packers.items import (
    FAST,
    Bins,
    Integers,
    Items,
    as_lengths,
    check_capacity,
    check_lengths,
)
from data.packers.plan import Plan, plan_of

# Tables by length cost more than a few samples are worth where the capacity is far above both.
_SMALL_CAPACITY = 1 << 16
_TOKENS_PER_ITEM = 8
_LARGEST_CAPACITY = 1 << 24


@dataclass(frozen=True, kw_only=True)
class ByLength(Packer):
    """A packer for which equal lengths are alike, so that it can pack a histogram.

    A subclass says twice what its algorithm is, and both must give the same bins: for a histogram,
    which takes next to no time for any number of samples, and item by item, for items that differ
    in more than their lengths, or a capacity that is too large for tables.
    """

    @abstractmethod
    def _pack_histogram(
        self, count: npt.NDArray[np.int64], capacity: int, most_samples: int
    ) -> tuple[Layers, Runs]:
        """Layers in the order in which they were laid, and runs in the order of their bins."""

    @abstractmethod
    def _pack_items(self, items: Items, capacity: int, most_samples: int) -> Bins:
        """As ``_pack``."""

    def plan(self, lengths: Integers, capacity: int) -> Plan:
        """The packing of these lengths, as patterns with multiplicities.

        Its bins are those of ``pack`` with neither ``min_bins`` nor ``bins_multiple``. It takes
        O(n) time to count the lengths; see ``plan_histogram`` for the rest.

        Args:
            lengths: integers ``[n]``, in tokens.
            capacity: the most tokens a bin may hold.

        Raises:
            ValueError: as ``pack`` does, and for a capacity above ``2**24``, where tables by length
                are no longer reasonable.
        """
        capacity = check_capacity(capacity)
        return self.plan_histogram(count_lengths(check_lengths(lengths, capacity), capacity)[0])

    def plan_histogram(self, count: npt.NDArray[np.int64]) -> Plan:
        """The packing of a histogram: of ``count[l]`` samples of ``l`` tokens, for each ``l``.

        The time depends on how many patterns there are, and not on how many samples: about a
        quarter of a millisecond at a capacity of 4096.

        Args:
            count: integers ``[capacity + 1]``, none below 0; ``count[0]`` is 0.

        Raises:
            ValueError: if it is not that, or has more than ``2**31 - 1`` samples.
        """
        count = np.ascontiguousarray(count, np.int64)
        capacity = count.size - 1
        if count.ndim != 1 or capacity < 1 or count[0] != 0 or count.min() < 0:
            raise ValueError(
                "count must be a flat array of capacity + 1 numbers of samples, none of them below "
                "0 and the first, of samples without a token, 0"
            )
        if capacity > _LARGEST_CAPACITY:
            raise ValueError(
                f"capacity must be at most {_LARGEST_CAPACITY} for a plan, got {capacity}"
            )
        samples = int(count.sum())
        if samples > np.iinfo(np.int32).max:
            raise ValueError(f"a plan has room for 2**31 - 1 samples, got {samples}")
        layers, runs = self._pack_histogram(count, capacity, self._most_samples(samples or 1))
        return plan_of(capacity, layers, runs)

    def pack_csr(
        self,
        lengths: Integers,
        capacity: int,
        *,
        together: Integers | None = None,
        apart: Integers | None = None,
    ) -> Bins:
        # Counting looks at every length, so it can check them too; the check takes longer.
        array = as_lengths(lengths)
        if together is None and apart is None and array.size and array.dtype in FAST:
            capacity = check_capacity(capacity)
            if capacity <= _largest_table(array.size):
                count, counted = count_lengths(array, capacity)
                if counted and count[0] == 0:
                    return self._with_enough_bins(array, self._place(array, count))
        return super().pack_csr(array, capacity, together=together, apart=apart)

    def _pack(self, items: Items, capacity: int) -> Bins:
        n = items.lengths.size
        alike = not items.stay_apart() and (
            not items.have_groups() or self.max_samples_per_bin is None
        )
        if alike and capacity <= _largest_table(n):
            return self._place(items.lengths, count_lengths(items.lengths, capacity)[0])
        return self._pack_items(items, capacity, self._most_samples(items.samples))

    def _place(self, lengths: npt.NDArray[np.integer[Any]], count: npt.NDArray[np.int64]) -> Bins:
        """Packs the histogram of lengths ``[n]``, then gives each sample its place."""
        layers, runs = self._pack_histogram(count, count.size - 1, self._most_samples(lengths.size))
        # Made here, not inside: numpy asks the system for large pages, compiled code does not.
        offsets = np.empty(bin_count(runs) + 1, np.int64)
        order, indices = np.empty((2, lengths.size), np.int32)
        set_offsets(runs, offsets)
        begin = sort_by_length(lengths, count, order)
        place_samples(order, begin, layers, offsets, indices)
        return indices, offsets


def _largest_table(n: int) -> int:
    """The capacity up to which tables by length are worth it for ``n`` lengths."""
    return max(_SMALL_CAPACITY, min(_LARGEST_CAPACITY, _TOKENS_PER_ITEM * n))
