"""A set of small integers that finds a member's nearest neighbour in a few instructions.

A bitmap, 64 members to a word, and a second bitmap of the words that are not empty. A set is the
pair of both arrays. A look-up scans the second one, ``size / 4096`` words at the very most.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from data.packers._compile import compiled, leading_zeros, trailing_zeros

type Bits = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]

_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@compiled
def empty_set(size: int) -> Bits:
    """A set for the integers ``0 .. size - 1``."""
    words = (size >> 6) + 1
    return np.zeros(words, np.uint64), np.zeros((words >> 6) + 1, np.uint64)


@compiled
def lengths_present(count: npt.NDArray[np.int64]) -> Bits:
    """The set of the lengths of which a histogram holds any."""
    bits = empty_set(count.size)
    for length in range(count.size):
        if count[length] > 0:
            add(bits, length)
    return bits


@compiled
def add(bits: Bits, member: int) -> None:
    """Adds a member."""
    words, occupied = bits
    word = member >> 6
    words[word] |= _ONE << np.uint64(member & 63)
    occupied[word >> 6] |= _ONE << np.uint64(word & 63)


@compiled
def remove(bits: Bits, member: int) -> None:
    """Removes a member."""
    words, occupied = bits
    word = member >> 6
    words[word] &= ~(_ONE << np.uint64(member & 63))
    if words[word] == 0:
        occupied[word >> 6] &= ~(_ONE << np.uint64(word & 63))


@compiled
def at_most(bits: Bits, bound: int) -> int:
    """The largest member that is at most ``bound`` (0 or more), or -1."""
    words, occupied = bits
    word = bound >> 6
    rest = words[word] & (_ALL >> np.uint64(63 - (bound & 63)))
    if rest != 0:
        return int((word << 6) + 63 - leading_zeros(rest))
    block = word >> 6
    rest = occupied[block] & ((_ONE << np.uint64(word & 63)) - _ONE)
    while rest == 0:
        block -= 1
        if block < 0:
            return -1
        rest = occupied[block]
    word = (block << 6) + 63 - leading_zeros(rest)
    return int((word << 6) + 63 - leading_zeros(words[word]))


@compiled
def at_least(bits: Bits, bound: int) -> int:
    """The smallest member that is at least ``bound``, or -1."""
    words, occupied = bits
    word = bound >> 6
    if word >= words.size:
        return -1
    rest = words[word] >> np.uint64(bound & 63)
    if rest != 0:
        return int(bound + trailing_zeros(rest))
    block = word >> 6
    rest = occupied[block] & ~(_ALL >> np.uint64(63 - (word & 63)))
    while rest == 0:
        block += 1
        if block == occupied.size:
            return -1
        rest = occupied[block]
    word = (block << 6) + trailing_zeros(rest)
    return int((word << 6) + trailing_zeros(words[word]))
