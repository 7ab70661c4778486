"""First fit in any order, with a tree in place of the scan over the bins."""

from __future__ import annotations

import numpy as np

from data.packers._apart import Apart, Lengths, Numbers, mark_bins, new_apart, note_bin, to_bins
from data.packers._compile import compiled, prefetch, trailing_zeros
from data.packers.items import Bins, Items

# A node of the tree has the most room in the 16 below it: a line of cache, and few instructions.
# The bins are level 0; all levels are in one array, `levels` says where, and the last has one line.

_BRANCHES = 16
_SHIFT = 4
_AHEAD = 16  # items to ask for in advance, which are anywhere in memory
_TABLE = 1 << 20  # tokens; above that, every search begins at the first bin

_ONE = np.uint64(1)
_TWO = np.uint64(2)


def first_fit(items: Items, order: Numbers, capacity: int, most_samples: int) -> Bins:
    """Puts each item into the first bin that takes it, opening one where there is none.

    Args:
        items: what to pack.
        order: in which order, ``[n]``.
        capacity: in tokens.
        most_samples: a bin with this many samples is full.

    Returns:
        The bins in the order of opening. It takes O(n log n) time.
    """
    bin_of = np.empty(order.size, np.int32)
    bins = _first_fit(
        items.lengths, items.sizes, order, capacity, most_samples, new_apart(items), bin_of
    )
    return to_bins(order, bin_of, bins)


@compiled
def _first_fit(
    lengths: Lengths,
    sizes: Numbers,
    order: Numbers,
    capacity: int,
    most_samples: int,
    apart: Apart,
    bin_of: Numbers,
) -> int:
    """Fills in the bin of each item, in the order of placing; how many bins there are.

    Bins that are not yet open have all their room, so the search finds the next one to open without
    a special case. The tree is made larger when they have all been opened.

    Rooms only shrink, so the first bin with room for a length never moves back. A search begins
    where the last one for that length ended, which is near where it will end.
    """
    grouped = sizes.size > 0
    limited = most_samples < (sizes.sum() if grouped else order.size)
    nodes, levels = _tree(np.empty(0, np.int32), 16 * _BRANCHES, capacity)
    begin = np.zeros(capacity + 1 if capacity <= _TABLE else 0, np.int32)
    held = np.zeros(order.size if limited else 0, np.int32)
    kept_apart = apart[0].size > 0
    marked = np.zeros(order.size if kept_apart else 0, np.int32)
    bins = 0
    for turn in range(order.size):
        if turn + _AHEAD < order.size:
            prefetch(lengths, order[turn + _AHEAD])
        item = order[turn]
        length = lengths[item]
        size = sizes[item] if grouped else 1
        if kept_apart:
            mark_bins(apart, item, marked)
        if bins == levels[1]:
            nodes, levels = _tree(nodes[:bins], 4 * bins, capacity)
        chosen = _first_from(nodes, levels, begin[length] if begin.size else 0, length)
        if begin.size:
            begin[length] = chosen
        while (kept_apart and marked[chosen] == item + 1) or (
            limited and held[chosen] + size > most_samples
        ):
            chosen = _first_from(nodes, levels, chosen + 1, length)
        bin_of[turn] = chosen
        if kept_apart:
            note_bin(apart, item, chosen)
        bins = max(bins, chosen + 1)
        room = nodes[chosen] - length
        if limited:
            held[chosen] += size
            if held[chosen] == most_samples:
                room = 0
        _set_room(nodes, levels, chosen, room)
    return bins


@compiled
def _tree(rooms: Numbers, leaves: int, capacity: int) -> tuple[Numbers, Numbers]:
    """A tree of ``leaves`` bins, a multiple of 16, the first of which have these rooms."""
    begin = np.zeros(10, np.int32)  # 16 ** 8 is more bins than there can be
    size = leaves
    level = 0
    while True:
        begin[level + 1] = begin[level] + size
        if size == _BRANCHES:
            break
        size = -(-(size // _BRANCHES) // _BRANCHES) * _BRANCHES
        level += 1
    levels = begin[: level + 2].copy()
    nodes = np.zeros(levels[-1], np.int32)  # those beyond the bins have no room
    nodes[:leaves] = capacity
    nodes[: rooms.size] = rooms
    for upper in range(1, levels.size - 1):
        for node in range((levels[upper] - levels[upper - 1]) >> _SHIFT):
            nodes[levels[upper] + node] = _most(nodes, levels[upper - 1] + (node << _SHIFT))
    return nodes, levels


@compiled
def _with_room(nodes: Numbers, first: int, length: int) -> np.uint64:
    """Which of a line of nodes have room for a length, as a bitmap."""
    bits = np.uint64(0)
    for branch in range(_BRANCHES):
        here = np.uint64(first) + np.uint64(branch)  # never negative: no test for it is compiled
        bits |= np.uint64(nodes[here] >= length) << np.uint64(branch)
    return bits


@compiled
def _most(nodes: Numbers, first: int) -> int:
    """The most room in a line of nodes."""
    most = nodes[np.uint64(first)]
    for branch in range(1, _BRANCHES):
        most = max(most, nodes[np.uint64(first) + np.uint64(branch)])
    return int(most)


@compiled
def _first_from(nodes: Numbers, levels: Numbers, node: int, length: int) -> int:
    """The first bin from ``node`` on that has room for a length; there must be one."""
    if nodes[node] >= length:
        return node
    level = 0
    while True:  # up, to the nearest node to the right that has room
        line = node & ~(_BRANCHES - 1)
        not_left = ~((_TWO << np.uint64(node & (_BRANCHES - 1))) - _ONE)
        bits = _with_room(nodes, levels[level] + line, length) & not_left
        if bits != 0:
            node = line + trailing_zeros(bits)
            break
        node >>= _SHIFT
        level += 1
    while level > 0:  # down, to the left
        level -= 1
        node <<= _SHIFT
        node += trailing_zeros(_with_room(nodes, levels[level] + node, length))
    return node


@compiled
def _set_room(nodes: Numbers, levels: Numbers, node: int, room: int) -> None:
    """Records the room left in a bin."""
    nodes[node] = room
    for level in range(1, levels.size - 1):
        node >>= _SHIFT
        most = _most(nodes, levels[level - 1] + (node << _SHIFT))
        if nodes[levels[level] + node] == most:
            return  # nothing changes further up
        nodes[levels[level] + node] = most
