"""What a packer packs: samples, or groups of samples that must share a bin."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from data.packers._layers import all_within

type Integers = Sequence[int] | npt.NDArray[np.integer[Any]]
type Bins = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]

# Boundaries inside a row are int32, and so are indices.
_MOST = 2**31 - 1

# What the inner loops are compiled for; other types are converted.
FAST = (np.dtype(np.int32), np.dtype(np.int64))


class ConstraintError(ValueError):
    """The samples leave no way to do what was asked for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Items:
    """What goes into bins, each whole.

    Attributes:
        lengths: int32 or int64 ``[n]``, in tokens, each in ``[1, capacity]``; ``n`` is at least 1.
        sizes: int32 ``[n]``, the samples in each item; empty where every item is one sample.
        apart_offsets: int32 ``[n + 1]``; empty where nothing has to stay apart. The numbers of
            item ``i`` are ``apart[apart_offsets[i] : apart_offsets[i + 1]]``, and no two items that
            have a number in common may share a bin.
        apart: int32, the numbers, in ``[0, apart_count)``.
        apart_count: how many different numbers there are.
    """

    lengths: npt.NDArray[np.integer[Any]]
    sizes: npt.NDArray[np.int32]
    apart_offsets: npt.NDArray[np.int32]
    apart: npt.NDArray[np.int32]
    apart_count: int

    @property
    def samples(self) -> int:
        """How many samples the items hold together."""
        return int(self.sizes.sum()) if self.sizes.size else self.lengths.size

    def have_groups(self) -> bool:
        """Whether an item may hold more than one sample."""
        return self.sizes.size > 0

    def stay_apart(self) -> bool:
        """Whether there are items that may not share a bin."""
        return self.apart_offsets.size > 0

    def fit(self, item: int, into: Sequence[int], capacity: int, most_samples: int) -> bool:
        """Whether an item can join those in a bin: by tokens, samples and what stays apart.

        For packers in plain Python; it takes time in proportion to the items in the bin.

        Args:
            item: its index.
            into: the indices in the bin.
            capacity: in tokens.
            most_samples: a bin with this many samples is full.
        """
        together = [*into, item]
        if int(self.lengths[together].sum(dtype=np.int64)) > capacity:
            return False
        samples = self.sizes[together].sum() if self.have_groups() else len(together)
        if samples > most_samples:
            return False
        numbers = [number for i in together for number in self._apart_numbers(i)]
        return len(numbers) == len(set(numbers))

    def _apart_numbers(self, item: int) -> list[int]:
        if not self.stay_apart():
            return []
        numbers: list[int] = self.apart[
            self.apart_offsets[item] : self.apart_offsets[item + 1]
        ].tolist()
        return numbers

    def longest_first(self) -> npt.NDArray[np.int32]:
        """Items ``[n]`` by decreasing length; equal lengths keep their order. O(n log n)."""
        return np.argsort(-self.lengths.astype(np.int64), kind="stable").astype(np.int32)


def check_capacity(capacity: int) -> int:
    """The capacity as an int, if a row can have it.

    Raises:
        ValueError: if it is below 1 or does not fit the int32 boundaries of a row.
    """
    capacity = operator.index(capacity)
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1 token, got {capacity}")
    if capacity > _MOST:
        raise ValueError(
            f"capacity must be at most {_MOST} tokens, which int32 boundaries can hold, "
            f"got {capacity}"
        )
    return capacity


def check_lengths(lengths: Integers, capacity: int) -> npt.NDArray[np.integer[Any]]:
    """Turns lengths into an array, or says which one cannot be packed.

    Args:
        lengths: integers ``[n]``, in tokens.
        capacity: the most tokens a bin may hold.

    Returns:
        The lengths, int32 or int64 ``[n]``, contiguous; the array itself if it is that already.

    Raises:
        ValueError: if the capacity is below 1 or above ``2**31 - 1``, the lengths are not a flat
            sequence of integers, or one of them is below 1 or above the capacity.
    """
    check_capacity(capacity)
    array = as_lengths(lengths)
    fast = array.dtype in FAST
    if array.size and not (fast and all_within(array, capacity)):
        # Compared before any cast: an unsigned length beyond int64 would come out negative.
        wrong = np.flatnonzero((array < 1) | (array > capacity))
        if wrong.size:
            raise ValueError(_complaint(int(wrong[0]), int(array[wrong[0]]), capacity))
    return array if fast else array.astype(np.int64)


def as_lengths(lengths: Integers) -> npt.NDArray[np.integer[Any]]:
    """Lengths as a contiguous array ``[n]`` of some integer type, whatever their values.

    Raises:
        ValueError: if they are not a flat sequence of integers, or too many for int32 indices.
    """
    array = _integers(lengths, "lengths")
    if array.size > _MOST:
        raise ValueError(f"at most {_MOST} lengths, which int32 indices can tell apart")
    return np.ascontiguousarray(array)


def _integers(values: Integers, name: str) -> npt.NDArray[np.integer[Any]]:
    array = np.asarray(values)
    if array.shape == (0,):  # numpy calls an empty list floating point
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name} must be a flat sequence of integers, got {array.dtype} of shape {array.shape}"
        )
    return array


def _complaint(index: int, length: int, capacity: int) -> str:
    """What is wrong with one length, in tokens, and what to do about it."""
    if length < 1:
        return (
            f"lengths[{index}] is {length} at a capacity of {capacity}: "
            "a sample takes at least 1 token"
        )
    return (
        f"lengths[{index}] is {length}, above the capacity of {capacity}: over-long samples never "
        "reach a packer: decide on them when the sample is made (data.overlong)"
    )


_NONE = np.empty(0, np.int32)


class Grouping:
    """From samples to items, and back.

    Args:
        lengths: int32 or int64 ``[samples]``, checked.
        capacity: in tokens.
        together: integers ``[samples]``: samples with the same number, 0 or more, share a bin; -1
            sets a sample free. ``None``: all are free.
        apart: integers ``[samples]``: samples with the same number, 0 or more, never share a bin;
            -1 lets a sample be beside any. ``None``: all may.
        most_samples: what a bin may hold at most.

    Attributes:
        items: what to pack: a group is where its first sample is.

    Raises:
        ValueError: ``together`` or ``apart`` is not one integer of -1 or more per sample.
        ConstraintError: a group has more tokens or more samples than a bin may have, or samples
            that have to stay apart. Its numbers are named.
    """

    def __init__(
        self,
        lengths: npt.NDArray[np.integer[Any]],
        capacity: int,
        together: Integers | None,
        apart: Integers | None,
        most_samples: int,
    ) -> None:
        self._samples = _NONE  # by item, where items are groups
        self._offsets = _NONE
        item_of = None
        sizes = _NONE
        if together is not None:
            numbers = _numbers(together, "together", lengths.size)
            item_of = self._group(numbers)
            lengths = np.add.reduceat(lengths[self._samples].astype(np.int64), self._offsets[:-1])
            sizes = np.diff(self._offsets)
            _check_groups(lengths, sizes, numbers[self._samples[self._offsets[:-1]]],
                          capacity, most_samples)  # fmt: skip
        offsets, members, count = _NONE, _NONE, 0
        if apart is not None:
            offsets, members, count = self._apart(
                _numbers(apart, "apart", self._samples.size or lengths.size), item_of, lengths.size
            )
        self.items = Items(
            lengths=lengths,
            sizes=sizes,
            apart_offsets=offsets,
            apart=members,
            apart_count=count,
        )

    def _group(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Sorts the samples by item; the item of each sample, ``[samples]``."""
        # A free sample is a group of its own: any number that nobody else has will do.
        key = np.where(numbers < 0, numbers.max() + 1 + np.arange(numbers.size), numbers)
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        rank = np.empty(first.size, np.int32)  # items in the order of their first samples
        rank[np.argsort(first)] = np.arange(first.size, dtype=np.int32)
        item_of = rank[inverse]
        self._samples = np.argsort(item_of, kind="stable").astype(np.int32)
        self._offsets = np.zeros(first.size + 1, np.int32)
        np.cumsum(np.bincount(item_of), out=self._offsets[1:])
        return item_of

    def _apart(
        self, numbers: npt.NDArray[np.int64], item_of: npt.NDArray[np.int32] | None, items: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
        """The numbers of each item, by item: offsets, numbers from 0 on, and how many differ."""
        tagged = np.flatnonzero(numbers >= 0)
        distinct, dense = np.unique(numbers[tagged], return_inverse=True)
        owner = tagged if item_of is None else item_of[tagged]
        order = np.lexsort((dense, owner))
        owner, dense = owner[order], dense[order]
        clash = np.flatnonzero((owner[1:] == owner[:-1]) & (dense[1:] == dense[:-1]))
        if clash.size:
            samples = np.sort(tagged[order[clash[0] : clash[0] + 2]]).tolist()
            raise ConstraintError(
                f"samples {samples[0]} and {samples[1]} have the same number in `together` and the "
                f"same number, {distinct[dense[clash[0]]]}, in `apart`: they cannot both share a "
                "bin and not share one"
            )
        offsets = np.zeros(items + 1, np.int32)
        np.cumsum(np.bincount(owner, minlength=items), out=offsets[1:])
        return offsets, dense.astype(np.int32), int(distinct.size)

    def samples_of(self, bins: Bins) -> Bins:
        """Bins of items as bins of samples; those of a group are neighbours, in their order."""
        if not self._samples.size:
            return bins
        items, offsets = bins
        sizes = np.diff(self._offsets)[items]
        ends = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        # Within each item, count up from where its samples begin.
        within = np.arange(ends[-1]) - np.repeat(ends[:-1], sizes)
        return self._samples[np.repeat(self._offsets[items], sizes) + within], ends[offsets]


def _numbers(values: Integers, name: str, samples: int) -> npt.NDArray[np.int64]:
    array = _integers(values, name)
    if array.size != samples:
        raise ValueError(f"{name} must have one number per sample, {samples}; it has {array.size}")
    if array.min() < -1:
        index = int(np.flatnonzero(array < -1)[0])
        raise ValueError(f"{name}[{index}] is {array[index]}: must be 0 or more, or -1 for none")
    return array.astype(np.int64)


def _check_groups(
    lengths: npt.NDArray[np.integer[Any]],
    sizes: npt.NDArray[np.int32],
    numbers: npt.NDArray[np.int64],
    capacity: int,
    most_samples: int,
) -> None:
    for values, most, what in (
        (lengths, capacity, "tokens, above the capacity of"),
        (sizes, most_samples, "samples, above max_samples_per_bin ="),
    ):
        wrong = np.flatnonzero(values > most)
        if wrong.size:
            raise ConstraintError(
                f"the samples whose number in `together` is {numbers[wrong[0]]} must share a bin, "
                f"and have {values[wrong[0]]} {what} {most}"
            )
