"""Modified first-fit decreasing, item by item; ``mffd`` describes the phases."""

from __future__ import annotations

import numpy as np

from data.packers._apart import Apart, Lengths, Numbers, mark_bins, new_apart, note_bin, to_bins
from data.packers._compile import compiled
from data.packers.items import Bins, Items

# Where items are in the order of decreasing length, and which are still to be put: of those that
# are gone, `down` and `up` lead to the nearest one that is not. `down` has an end beyond the last
# item, and `up` one before the first, at index 0: it is shifted by one.
type _Left = tuple[Numbers, Numbers, Numbers]

# How full each bin is: its tokens, its samples, and the items and their bins, in order of placing.
type _Filled = tuple[Numbers, Numbers, Numbers, Numbers, Numbers]


def modified_first_fit(items: Items, capacity: int, most_samples: int) -> Bins:
    """The five phases, where a bin passes over items that it must not take.

    Args:
        items: what to pack.
        capacity: in tokens.
        most_samples: a bin with this many samples is full.

    Returns:
        The bins in the order of opening. It takes O(n log n) time.
    """
    order = items.longest_first()
    n = order.size
    sizes = items.sizes if items.have_groups() else np.ones(n, np.int32)
    left = (order, np.arange(n + 1, dtype=np.int32), np.arange(n + 1, dtype=np.int32))
    filled = (
        np.zeros(n, np.int32),
        np.zeros(n, np.int32),
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        np.zeros(1, np.int32),
    )
    bins = _pack(items.lengths, sizes, capacity, most_samples, new_apart(items), left, filled)
    return to_bins(filled[2], filled[3], bins)


@compiled
def _follow(pointers: Numbers, at: int) -> int:
    """Where the pointers lead to; all on the way then point straight at it."""
    end = at
    while pointers[end] != end:
        end = pointers[end]
    while pointers[at] != end:
        pointers[at], at = end, pointers[at]
    return end


@compiled
def _first_at_most(lengths: Lengths, order: Numbers, bound: int) -> int:
    """The first position of an item of at most ``bound`` tokens, or the end; by bisection."""
    low, high = 0, order.size
    while low < high:
        middle = (low + high) // 2
        if lengths[order[middle]] <= bound:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def _put(
    position: int,
    bin_number: int,
    lengths: Lengths,
    sizes: Numbers,
    apart: Apart,
    left: _Left,
    filled: _Filled,
) -> None:
    order, down, up = left
    tokens, held, placed, bin_of, turn = filled
    item = order[position]
    down[position] = position + 1
    up[position + 1] = position
    tokens[bin_number] += lengths[item]
    held[bin_number] += sizes[item]
    placed[turn[0]] = item
    bin_of[turn[0]] = bin_number
    turn[0] += 1
    if apart[0].size:
        note_bin(apart, item, bin_number)


@compiled
def _takes(
    item: int,
    bin_number: int,
    sizes: Numbers,
    most_samples: int,
    apart: Apart,
    marked: Numbers,
    held: Numbers,
) -> bool:
    """Whether a bin with room for an item's tokens may have it."""
    if held[bin_number] + sizes[item] > most_samples:
        return False
    if marked.size == 0:
        return True
    marked[bin_number] = 0
    mark_bins(apart, item, marked)
    return bool(marked[bin_number] != item + 1)


@compiled
def _put_longest(
    bin_number: int,
    above: int,
    at_most: int,
    lengths: Lengths,
    sizes: Numbers,
    most_samples: int,
    apart: Apart,
    marked: Numbers,
    left: _Left,
    filled: _Filled,
) -> bool:
    """Puts the longest item in ``(above, at_most]`` that a bin takes into it, if there is one."""
    order, down, _ = left
    held = filled[1]
    position = _follow(down, _first_at_most(lengths, order, at_most))
    while position < order.size and lengths[order[position]] > above:
        if _takes(order[position], bin_number, sizes, most_samples, apart, marked, held):
            _put(position, bin_number, lengths, sizes, apart, left, filled)
            return True
        if held[bin_number] == most_samples:
            return False
        position = _follow(down, position + 1)
    return False


@compiled
def _put_pair(
    bin_number: int,
    room: int,
    capacity: int,
    lengths: Lengths,
    sizes: Numbers,
    most_samples: int,
    apart: Apart,
    marked: Numbers,
    left: _Left,
    filled: _Filled,
) -> None:
    """Phase 3 for one bin: the shortest small item and the longest other one, or neither."""
    order, down, up = left
    held = filled[1]
    least = capacity // 6
    # From the shortest length upwards; of one length, from the lowest index, which is its first.
    last = _follow(up, _first_at_most(lengths, order, least)) - 1
    while last >= 0 and lengths[order[last]] <= capacity // 3:
        length = lengths[order[last]]
        if 2 * length > room:
            return
        begin = _first_at_most(lengths, order, length)
        first = _follow(down, begin)
        while first < order.size and lengths[order[first]] == length:
            if _takes(order[first], bin_number, sizes, most_samples, apart, marked, held):
                if _has_partner(
                    first, bin_number, room, least, lengths, sizes, most_samples, apart, marked,
                    left, filled,
                ):  # fmt: skip
                    _put(first, bin_number, lengths, sizes, apart, left, filled)
                    _put_longest(
                        bin_number, least, room - length, lengths, sizes, most_samples, apart,
                        marked, left, filled,
                    )  # fmt: skip
                return
            first = _follow(down, first + 1)
        last = _follow(up, begin) - 1


@compiled
def _has_partner(
    first: int,
    bin_number: int,
    room: int,
    least: int,
    lengths: Lengths,
    sizes: Numbers,
    most_samples: int,
    apart: Apart,
    marked: Numbers,
    left: _Left,
    filled: _Filled,
) -> bool:
    """Whether a small item is left that the bin takes beside the one at ``first``."""
    order, down, _ = left
    held = filled[1]
    item = order[first]
    position = _follow(down, _first_at_most(lengths, order, room - lengths[item]))
    while position < order.size and lengths[order[position]] > least:
        other = order[position]
        if (
            position != first
            and held[bin_number] + sizes[item] + sizes[other] <= most_samples
            and not _share_a_number(apart, item, other)
            and _takes(other, bin_number, sizes, most_samples, apart, marked, held)
        ):
            return True
        position = _follow(down, position + 1)
    return False


@compiled
def _share_a_number(apart: Apart, one: int, other: int) -> bool:
    offsets, numbers = apart[0], apart[1]
    if offsets.size == 0:
        return False
    for entry in range(offsets[one], offsets[one + 1]):
        for candidate in range(offsets[other], offsets[other + 1]):
            if numbers[entry] == numbers[candidate]:
                return True
    return False


@compiled
def _pack(
    lengths: Lengths,
    sizes: Numbers,
    capacity: int,
    most_samples: int,
    apart: Apart,
    left: _Left,
    filled: _Filled,
) -> int:
    """All five phases; how many bins there are."""
    order = left[0]
    down = left[1]
    tokens = filled[0]
    marked = np.zeros(order.size if apart[0].size else 0, np.int32)
    bins = _first_at_most(lengths, order, capacity // 2)
    for position in range(bins):
        _put(position, position, lengths, sizes, apart, left, filled)
    for bin_number in range(bins):
        _put_longest(
            bin_number, capacity // 3, min(capacity // 2, capacity - tokens[bin_number]), lengths,
            sizes, most_samples, apart, marked, left, filled,
        )  # fmt: skip
    for bin_number in range(bins - 1, -1, -1):
        # A medium one leaves less than C/6, where no small one fits.
        _put_pair(
            bin_number, capacity - tokens[bin_number], capacity, lengths, sizes, most_samples,
            apart, marked, left, filled,
        )  # fmt: skip
    bin_number = 0
    while True:
        if bin_number >= bins:
            if _follow(down, 0) == order.size:
                return bins
            bins += 1
        while tokens[bin_number] < capacity and _put_longest(
            bin_number, 0, capacity - tokens[bin_number], lengths, sizes, most_samples, apart,
            marked, left, filled,
        ):  # fmt: skip
            pass
        bin_number += 1
