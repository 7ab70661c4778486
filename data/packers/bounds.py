"""How few bins any packer could need, to show beside how many one did need."""

from __future__ import annotations

import operator

import numpy as np

from data.packers.base import Lengths, check_lengths


def lower_bound(lengths: Lengths, capacity: int) -> int:
    """A number of bins that no packing can go below: the larger of two classic bounds.

    L1 divides the tokens by the capacity ``C``. L2 (Martello and Toth, *Knapsack Problems*, 1990,
    section 8.3.2) also sees that long samples cannot share a bin: for a threshold ``k <= C/2``,
    every sample above ``C/2`` has a bin of its own, those above ``C - k`` leave no room for a
    sample of ``k`` or more, and the samples in ``[k, C/2]`` that the other own bins cannot absorb
    need bins of their own. The best threshold is 0 or one of the lengths. At threshold 0 this is
    at least L1, so the maximum over the thresholds is the larger of both bounds.

    ``max_samples_per_bin`` is left out of account; the bound holds with it, but may be far off.

    For capacity 10 and lengths 7, 7, 7, 4, 4, 4: L1 is ``ceil(33 / 10) = 4``. At threshold 4 the
    7s leave no room for the 4s, whose 12 tokens need 2 more bins: L2 is 5, which is the optimum.

    >>> lower_bound([7, 7, 7, 4, 4, 4], 10)
    5

    Args:
        lengths: integers ``[n]``, in tokens.
        capacity: the most tokens a bin may hold.

    Returns:
        The bound, in bins; 0 for no lengths. It takes O(n log n) time.

    Raises:
        ValueError: for what a packer would refuse, too.
    """
    capacity = operator.index(capacity)
    ascending = np.sort(check_lengths(lengths, capacity))
    tokens = np.concatenate(([0], np.cumsum(ascending)))  # tokens[i]: in the i shortest samples
    half = np.searchsorted(ascending, capacity // 2, side="right")  # where the long ones begin
    threshold = np.concatenate(([0], np.unique(ascending[:half])))
    # Each of these is one value per threshold: ascending[begin:half] are the samples in
    # [threshold, C/2], ascending[half:end] the long ones that leave room for some of them.
    begin = np.searchsorted(ascending, threshold, side="left")
    end = np.searchsorted(ascending, capacity - threshold, side="right")
    room = (end - half) * capacity - (tokens[end] - tokens[half])
    unplaced = np.maximum(tokens[half] - tokens[begin] - room, 0)
    return int(ascending.size - half + np.max(-(-unplaced // capacity)))
