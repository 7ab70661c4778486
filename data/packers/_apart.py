"""Items that must not share a bin, and where they are; items sorted by bin."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from data.packers._compile import compiled, prefetch
from data.packers.items import Bins, Items

type Numbers = npt.NDArray[np.int32]
type Lengths = npt.NDArray[np.integer[Any]]
type Apart = tuple[Numbers, Numbers, Numbers, Numbers, Numbers]


def new_apart(items: Items) -> Apart:
    """Where items that have to stay apart have been put; nowhere yet.

    An item may be a group of several samples, and may have to stay apart from others. Bins that
    must not take an item are marked before its turn, as many as there are items that share a number
    with it, so a search passes over few of them.

    Each number has a linked list of the bins it is in: a number of an item is a node, and an item
    is put once, so there are as many nodes as ``items.apart`` has entries.
    """
    return (
        items.apart_offsets,
        items.apart,
        np.full(items.apart_count, -1, np.int32),  # the first node of each number's list
        np.empty(items.apart.size, np.int32),  # the node after each node
        np.empty(items.apart.size, np.int32),  # the bin of each node
    )


@compiled
def mark_bins(apart: Apart, item: int, marked: Numbers) -> None:
    """Writes ``item + 1`` where ``marked`` stands for a bin that must not take it."""
    offsets, numbers, first, after, bin_of = apart
    for entry in range(offsets[item], offsets[item + 1]):
        node = first[numbers[entry]]
        while node >= 0:
            marked[bin_of[node]] = item + 1
            node = after[node]


@compiled
def note_bin(apart: Apart, item: int, bin_number: int) -> None:
    """Records which bin took an item."""
    offsets, numbers, first, after, bin_of = apart
    for entry in range(offsets[item], offsets[item + 1]):
        bin_of[entry] = bin_number
        after[entry] = first[numbers[entry]]
        first[numbers[entry]] = entry


@compiled
def items_by_bin(
    order: Numbers, bin_of: Numbers, offsets: npt.NDArray[np.int64], indices: Numbers
) -> None:
    """Sorts items by bin; those of one bin stay in the order in which they were placed.

    Args:
        order: items in that order, ``[n]``.
        bin_of: the bin of each, in the same order, ``[n]``.
        offsets: zeros ``[bins + 1]``, is filled in.
        indices: ``[n]``, is filled in. O(n).
    """
    for turn in range(bin_of.size):
        prefetch(bin_of, turn + 1024)
        offsets[bin_of[turn] + 1] += 1
    for bin_number in range(offsets.size - 1):
        offsets[bin_number + 1] += offsets[bin_number]
    place = offsets[:-1].copy()
    for turn in range(bin_of.size):
        prefetch(bin_of, turn + 1024)
        prefetch(order, turn + 1024)
        indices[place[bin_of[turn]]] = order[turn]
        place[bin_of[turn]] += 1


def to_bins(order: Numbers, bin_of: Numbers, bins: int) -> Bins:
    offsets = np.zeros(bins + 1, np.int64)
    indices = np.empty(order.size, np.int32)
    items_by_bin(order, bin_of, offsets, indices)
    return indices, offsets
