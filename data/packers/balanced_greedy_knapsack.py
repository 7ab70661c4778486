"""Balanced greedy knapsack: spreads samples over a preset number of bins, evenly."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from data.packers.base import Packer, longest_first


@dataclass(frozen=True, kw_only=True)
class BalancedGreedyKnapsack(Packer):
    """Opens a number of bins at once, then gives each sample, longest first, to the emptiest bin.

    It starts with ``ceil(tokens / capacity) + delta`` bins. A sample that does not fit the
    emptiest bin fits none, and opens one more. A bin that is full by its number of samples is out
    of the choice. Bins that stayed empty are left out of the answer.

    ``delta`` trades fill for evenness: the same samples, over more bins.

    Source: the balanced greedy knapsack of Megatron-LM's multimodal examples.
    Guarantee: either no more bins than it starts with, or fewer than ``2 tokens / capacity + 1``,
    since it opens another one only when all are more than half full.
    Complexity: O(n log n), plus the bins it starts with.
    Ties: of equal lengths the lower index goes first; of equally empty bins, the first opened.

    Sixteen tokens start two bins of 8, which take turns; one bin more would have taken a turn too:

    >>> BalancedGreedyKnapsack().pack([4, 4, 4, 4], capacity=8)
    [[0, 2], [1, 3]]
    >>> BalancedGreedyKnapsack(delta=1).pack([4, 4, 4, 4], capacity=8)
    [[0, 3], [1], [2]]

    Attributes:
        delta: how many bins to start with beyond ``ceil(tokens / capacity)``, 0 or more.

    Raises:
        ValueError: if ``delta`` is negative.
    """

    delta: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta < 0:
            raise ValueError(f"delta must be 0 or more, got {self.delta}")

    def _pack(self, lengths: npt.NDArray[np.int64], capacity: int) -> list[list[int]]:
        most_samples = self._most_samples(lengths)
        sizes: list[int] = lengths.tolist()
        bins: list[list[int]] = [[] for _ in range(-(-sum(sizes) // capacity) + self.delta)]
        # (tokens, number) of the bins that can still take a sample, the emptiest on top.
        loads = [(0, number) for number in range(len(bins))]
        heapify(loads)
        for index in longest_first(lengths):
            if loads and loads[0][0] + sizes[index] <= capacity:
                load, number = heappop(loads)
            else:
                load, number = 0, len(bins)
                bins.append([])
            bins[number].append(index)
            if len(bins[number]) < most_samples:
                heappush(loads, (load + sizes[index], number))
        return [samples for samples in bins if samples]
