"""What every packer is: an algorithm, its options, and the contract it keeps."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

type Lengths = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, kw_only=True)
class Packer(ABC):
    """Puts samples into bins, knowing only how many tokens each one takes.

    A packer is its own configuration: its fields are its options, and a frozen packer cannot
    change between two calls. A subclass adds fields and one method, ``_pack``.

    The contract every packer keeps:

    - pure: the answer depends on the lengths, the capacity and the options, on nothing else, and
      no argument or global state is changed; so equal calls give equal bins;
    - every index into ``lengths`` is in exactly one bin, once;
    - no bin is empty, none holds more tokens than the capacity, and none holds more samples than
      ``max_samples_per_bin``;
    - bins come in the order in which they were opened, samples in the order in which they were
      placed.

    A bound that a subclass quotes is on its number of bins beside the fewest possible, ``OPT``, for
    ``max_samples_per_bin=None``.

    Attributes:
        max_samples_per_bin: a bin with this many samples is full, whatever room is left in it.
            ``None`` sets no limit.

    Raises:
        ValueError: if ``max_samples_per_bin`` is below 1.
    """

    max_samples_per_bin: int | None = None

    def __post_init__(self) -> None:
        if self.max_samples_per_bin is not None and self.max_samples_per_bin < 1:
            raise ValueError(
                f"max_samples_per_bin must be at least 1 or null, got {self.max_samples_per_bin}"
            )

    def pack(self, lengths: Lengths, capacity: int) -> list[list[int]]:
        """Puts every sample into a bin.

        Args:
            lengths: integers ``[n]``, the tokens each sample takes in a row.
            capacity: the most tokens a bin may hold.

        Returns:
            The bins, each a list of indices into ``lengths``; no bins for no lengths.

        Raises:
            ValueError: if the capacity is below 1, the lengths are not a flat sequence of
                integers, or one of them is below 1 or above the capacity.
        """
        capacity = operator.index(capacity)
        checked = check_lengths(lengths, capacity)
        return self._pack(checked, capacity) if checked.size else []

    def pack_csr(
        self, lengths: Lengths, capacity: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Does what ``pack`` does and answers with two flat arrays.

        Args:
            lengths: integers ``[n]``, the tokens each sample takes in a row.
            capacity: the most tokens a bin may hold.

        Returns:
            ``indices``, int32 ``[n]``, the bins one after the other, and ``offsets``, int64
            ``[bins + 1]``: bin ``b`` is ``indices[offsets[b]:offsets[b + 1]]``.

        Raises:
            ValueError: as ``pack`` does.
        """
        bins = self.pack(lengths, capacity)
        offsets = np.zeros(len(bins) + 1, dtype=np.int64)
        np.cumsum([len(samples) for samples in bins], out=offsets[1:])
        indices = np.fromiter(chain.from_iterable(bins), dtype=np.int32, count=int(offsets[-1]))
        return indices, offsets

    @abstractmethod
    def _pack(self, lengths: npt.NDArray[np.int64], capacity: int) -> list[list[int]]:
        """Packs lengths ``[n]`` that are known to be valid, with ``n`` at least 1."""

    def _most_samples(self, lengths: npt.NDArray[np.int64]) -> int:
        """How many samples fill a bin: the option, or all there are where it is not set."""
        return self.max_samples_per_bin or lengths.size


def check_lengths(lengths: Lengths, capacity: int) -> npt.NDArray[np.int64]:
    """Turns lengths into an array, or says which one cannot be packed.

    Args:
        lengths: integers ``[n]``, in tokens.
        capacity: the most tokens a bin may hold.

    Returns:
        The lengths, int64 ``[n]``.

    Raises:
        ValueError: if the capacity is below 1, the lengths are not a flat sequence of integers, or
            one of them is below 1 or above the capacity.
    """
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1 token, got {capacity}")
    array = np.asarray(lengths)
    if array.shape == (0,):  # numpy calls an empty list floating point
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"lengths must be a flat sequence of integers, got {array.dtype} of shape {array.shape}"
        )
    # Compared before the cast: an unsigned length beyond int64 would come out negative.
    wrong = np.flatnonzero((array < 1) | (array > capacity))
    if wrong.size:
        raise ValueError(_complaint(int(wrong[0]), int(array[wrong[0]]), capacity))
    return array.astype(np.int64)


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


def longest_first(lengths: npt.NDArray[np.int64]) -> list[int]:
    """Indices of lengths ``[n]`` by decreasing length; equal lengths keep their input order."""
    order: list[int] = np.argsort(-lengths, kind="stable").tolist()
    return order
