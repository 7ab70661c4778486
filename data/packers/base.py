"""What every packer is: an algorithm, its options, and the contract it keeps."""

from __future__ import annotations

import gc
import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from data.packers.items import (
    Bins,
    ConstraintError,
    Grouping,
    Integers,
    Items,
    check_capacity,
    check_lengths,
)

__all__ = ["ConstraintError", "Items", "Packer"]


@dataclass(frozen=True, kw_only=True)
class Packer(ABC):
    """Puts samples into bins, knowing only how many tokens each one takes.

    A packer is its own configuration: its fields are its options, and a frozen packer cannot
    change between two calls. A subclass adds fields and one method, ``_pack``.

    The contract every packer keeps:

    - pure: the answer depends on the arguments and the options, on nothing else, and no argument or
      global state is changed; so equal calls give equal bins;
    - every index into ``lengths`` is in exactly one bin, once;
    - no bin is empty, none holds more tokens than the capacity, and none holds more samples than
      ``max_samples_per_bin``;
    - samples that must share a bin do, and those that must not do not;
    - there are at least ``min_bins`` bins, and a multiple of ``bins_multiple``;
    - bins come in the order in which they were opened, samples in the order in which they were
      placed;
    - what cannot be met is an error that says what and why, before anything is packed or instead.

    A bound that a subclass quotes is on its number of bins beside the fewest possible, ``OPT``, for
    nothing set but the capacity.

    Attributes:
        max_samples_per_bin: a bin with this many samples is full, whatever room is left in it.
            ``None`` sets no limit.
        min_bins: at least so many bins. Where the algorithm makes fewer, the bin with the most
            tokens is cut into two parts of about equal tokens, until there are enough; the parts
            take its place. ``None`` sets no limit.
        bins_multiple: the number of bins is a multiple of this, reached in the same way: so that
            bins can be dealt to data-parallel ranks without losing or copying a sample. ``None``
            is 1.

    Raises:
        ValueError: if one of them is below 1.
    """

    max_samples_per_bin: int | None = None
    min_bins: int | None = None
    bins_multiple: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_samples_per_bin", "min_bins", "bins_multiple"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 or null, got {value}")

    def pack(
        self,
        lengths: Integers,
        capacity: int,
        *,
        together: Integers | None = None,
        apart: Integers | None = None,
    ) -> list[list[int]]:
        """Puts every sample into a bin.

        Args:
            lengths: integers ``[n]``, the tokens each sample takes in a row.
            capacity: the most tokens a bin may hold.
            together: integers ``[n]``: samples with the same number, 0 or more, share a bin, side
                by side; -1 sets a sample free. ``None``: all are free.
            apart: integers ``[n]``: samples with the same number, 0 or more, never share a bin
                (answers to one prompt, say); -1 lets a sample be beside any. ``None``: all may.

        Returns:
            The bins, each a list of indices into ``lengths``; no bins for no lengths.

        Raises:
            ValueError: if the capacity is below 1 or above ``2**31 - 1``, the lengths are not a
                flat sequence of integers, one of them is below 1 or above the capacity, or
                ``together`` or ``apart`` are not one number per sample.
            ConstraintError: if there are too few samples for ``min_bins`` or ``bins_multiple``, or
                a group does not fit into a bin, or has samples that must stay apart.
        """
        indices, offsets = self.pack_csr(lengths, capacity, together=together, apart=apart)
        return _as_lists(indices.tolist(), offsets.tolist())

    def pack_csr(
        self,
        lengths: Integers,
        capacity: int,
        *,
        together: Integers | None = None,
        apart: Integers | None = None,
    ) -> Bins:
        """Does what ``pack`` does and answers with two flat arrays; the fast path.

        Args:
            lengths: as for ``pack``; an int32 or int64 array is taken as it is.
            capacity: as for ``pack``.
            together: as for ``pack``.
            apart: as for ``pack``.

        Returns:
            ``indices``, int32 ``[n]``, the bins one after the other, and ``offsets``, int64
            ``[bins + 1]``: bin ``b`` is ``indices[offsets[b]:offsets[b + 1]]``.

        Raises:
            ValueError: as ``pack`` does.
        """
        capacity = check_capacity(capacity)
        checked = check_lengths(lengths, capacity)
        if not checked.size:
            return np.empty(0, np.int32), np.zeros(1, np.int64)
        grouping = Grouping(checked, capacity, together, apart, self._most_samples(checked.size))
        bins = _as_arrays(self._pack(grouping.items, capacity))
        if grouping.items.stay_apart():
            self._check_apart(grouping.items, bins)
        what = "groups of samples" if grouping.items.have_groups() else "samples"
        return grouping.samples_of(self._with_enough_bins(grouping.items.lengths, bins, what))

    @abstractmethod
    def _pack(self, items: Items, capacity: int) -> Bins | list[list[int]]:
        """Packs items that are known to be valid and at least one.

        ``min_bins`` and ``bins_multiple`` are none of its business; everything else is.

        Returns:
            Indices into the items: as ``pack_csr`` has them, or a list for each bin.
        """

    def _most_samples(self, samples: int) -> int:
        """How many samples fill a bin: the option, or all there are where it is not set."""
        return self.max_samples_per_bin or samples

    def _check_apart(self, items: Items, bins: Bins) -> None:
        """Says so if a packer, one from elsewhere perhaps, cannot keep items apart."""
        placed, offsets = bins
        bin_of = np.empty(placed.size, np.int64)
        bin_of[placed] = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        of_entry = np.repeat(np.arange(placed.size), np.diff(items.apart_offsets))
        pairs = bin_of[of_entry] * items.apart_count + items.apart
        if np.unique(pairs).size < pairs.size:
            raise ConstraintError(f"{type(self).__name__} cannot keep samples apart")

    def _with_enough_bins(
        self, lengths: npt.NDArray[np.integer[Any]], bins: Bins, what: str = "samples"
    ) -> Bins:
        """Meets ``min_bins`` and ``bins_multiple``, or says that they cannot be met."""
        indices, offsets = bins
        multiple = self.bins_multiple or 1
        wanted = max(offsets.size - 1, self.min_bins or 0)
        wanted = -(-wanted // multiple) * multiple
        if wanted == offsets.size - 1:
            return bins
        if wanted > indices.size:
            asked = [
                f"{name}={getattr(self, name)}"
                for name in ("min_bins", "bins_multiple")
                if getattr(self, name) is not None
            ]
            raise ConstraintError(
                f"{indices.size} {what} cannot fill the {wanted} bins that {' and '.join(asked)} "
                "would need: no bin is empty"
            )
        tokens = np.concatenate(([0], np.cumsum(lengths[indices], dtype=np.int64)))
        return indices, _cut(offsets, tokens, wanted)


def _cut(
    offsets: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64], wanted: int
) -> npt.NDArray[np.int64]:
    """Cuts the bin with the most tokens in two until there are ``wanted`` bins.

    Args:
        offsets: where each bin begins, ``[bins + 1]``.
        tokens: in the items before each one, ``[items + 1]``.
        wanted: bins, at most as many as items.

    Returns:
        The offsets ``[wanted + 1]``. It takes O((bins + wanted) log wanted) time.
    """
    ends: list[int] = offsets.tolist()
    heap = [(-int(tokens[b] - tokens[a]), a, b) for a, b in pairwise(ends) if b - a > 1]
    heapq.heapify(heap)
    while len(ends) <= wanted:
        _, begin, end = heapq.heappop(heap)
        # The first place where the left part has half the tokens, or the one before it.
        twice = int(tokens[begin] + tokens[end])
        cut = begin + int(np.searchsorted(tokens[begin : end + 1], -(-twice // 2)))
        cut = min(max(cut, begin + 1), end - 1)
        if cut - 1 > begin and twice - 2 * tokens[cut - 1] < 2 * tokens[cut] - twice:
            cut -= 1
        ends.append(cut)
        for a, b in ((begin, cut), (cut, end)):
            if b - a > 1:
                heapq.heappush(heap, (-int(tokens[b] - tokens[a]), a, b))
    return np.array(sorted(ends), np.int64)


def _as_lists(indices: list[int], offsets: list[int]) -> list[list[int]]:
    """A list for each bin."""
    # Python looks for reference cycles after every so many new lists, over and over among those it
    # has looked at before. There are none in lists of numbers, and the looking takes the most time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return list(map(indices.__getitem__, map(slice, offsets, offsets[1:])))
    finally:
        if collecting:
            gc.enable()


def _as_arrays(bins: Bins | list[list[int]]) -> Bins:
    if not isinstance(bins, list):
        return bins
    offsets = np.zeros(len(bins) + 1, np.int64)
    np.cumsum([len(items) for items in bins], out=offsets[1:])
    return np.fromiter(chain.from_iterable(bins), np.int32, int(offsets[-1])), offsets
