"""How few bins any packer could need, to show beside how many one did need."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from data.packers._layers import count_lengths
from data.packers.items import Integers, check_lengths

_TABLE = 1 << 16  # tokens; a histogram costs more than sorting where the capacity is far above n


def lower_bound(lengths: Integers, capacity: int, *, max_samples_per_bin: int | None = None) -> int:
    """A number of bins that no packing can go below: the larger of two classic bounds.

    L1 divides the tokens by the capacity ``C``. L2 (Martello and Toth, "Lower bounds and reduction
    procedures for the bin packing problem", Discrete Applied Mathematics 28, 1990) also sees that
    long samples cannot share a bin: for a threshold ``k <= C/2``, every sample above ``C/2`` has a
    bin of its own, those above ``C - k`` leave no room for a sample of ``k`` or more, and the
    samples in ``[k, C/2]`` that the other own bins cannot absorb need bins of their own. The best
    threshold is 0 or one of the lengths. At threshold 0 this is at least L1, so the maximum over
    the thresholds is the larger of both bounds.

    For capacity 10 and lengths 7, 7, 7, 4, 4, 4: L1 is ``ceil(33 / 10) = 4``. At threshold 4 the
    7s leave no room for the 4s, whose 12 tokens need 2 more bins: L2 is 5, which is the optimum.

    >>> lower_bound([7, 7, 7, 4, 4, 4], 10)
    5

    Args:
        lengths: integers ``[n]``, in tokens.
        capacity: the most tokens a bin may hold.
        max_samples_per_bin: samples that fill a bin; the bound is then at least the samples divided
            by it. ``None`` sets no limit.

    Returns:
        The bound, in bins; 0 for no lengths. It takes O(n + capacity) time, or O(n log n) where the
        capacity is far above n.

    Raises:
        ValueError: for what a packer would refuse, too.
    """
    checked = check_lengths(lengths, capacity)
    if not checked.size:
        return 0
    if capacity <= max(_TABLE, 8 * checked.size):
        count, _ = count_lengths(checked, capacity)
        distinct = np.flatnonzero(count)
        bound = _l2(distinct, count[distinct], capacity)
    else:
        distinct, count = np.unique(checked, return_counts=True)
        bound = _l2(distinct, count, capacity)
    return max(bound, -(-checked.size // (max_samples_per_bin or checked.size)))


def histogram_lower_bound(count: npt.NDArray[np.integer[Any]]) -> int:
    """``lower_bound`` of ``count[l]`` samples of ``l`` tokens, for each ``l`` up to the capacity.

    Args:
        count: integers ``[capacity + 1]``, none below 0; ``count[0]`` is 0.

    Returns:
        The bound, in bins. It takes O(capacity) time.
    """
    distinct = np.flatnonzero(count)
    return _l2(distinct, count[distinct], count.size - 1) if distinct.size else 0


def _l2(
    distinct: npt.NDArray[np.integer[Any]], count: npt.NDArray[np.integer[Any]], capacity: int
) -> int:
    """L2 of different lengths, ascending, and how many samples there are of each."""
    samples = np.concatenate(([0], np.cumsum(count, dtype=np.int64)))
    tokens = np.concatenate(([0], np.cumsum(distinct * count, dtype=np.int64)))
    half = np.searchsorted(distinct, capacity // 2, side="right")  # where the long ones begin
    threshold = np.concatenate(([0], distinct[:half]))
    # Each of these is one value per threshold: distinct[begin:half] are the lengths in
    # [threshold, C/2], distinct[half:end] the long ones that leave room for some of them.
    begin = np.searchsorted(distinct, threshold, side="left")
    end = np.searchsorted(distinct, capacity - threshold, side="right")
    room = (samples[end] - samples[half]) * capacity - (tokens[end] - tokens[half])
    unplaced = np.maximum(tokens[half] - tokens[begin] - room, 0)
    return int(samples[-1] - samples[half] + np.max(-(-unplaced // capacity)))
