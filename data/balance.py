"""Level ranks: which bins of a step each data-parallel rank gets, and which bins share a step.

A step lasts as long as its slowest rank. Bins of equal tokens are not equal work, attention costs
the square of a sample's length, so dealing bins out in turn leaves most ranks waiting. With
several bins per rank and step, :func:`level` evens the ranks out. With one there is nothing to
exchange, and :func:`window_order` puts bins of like cost into the same step instead.

Every function answers the same on every rank, so no rank has to tell another what it decided.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from data.packers.items import Integers

type Costs = npt.NDArray[np.float64]
type Bins = npt.NDArray[np.int64]

# A smaller gain, as a part of a rank's cost, may be rounding: taken, it could be taken for ever.
_LEAST_GAIN = 1e-9
# Ranks this near to their mean, as a part of it, are level: no clock would see a difference.
_LEVEL = 1e-6


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a sample costs: ``per_token * n + per_squared_token * n^2`` for n tokens.

    Only costs are held against each other, so their unit is free. 1 and 0 count tokens, 0 and 1
    attention, and a model's own FLOPs per token and per squared token its whole step.

    Attributes:
        per_token: work per token.
        per_squared_token: work per squared length of a sample.

    Raises:
        ValueError: if one of them is below 0 or not finite, or both are 0.
    """

    per_token: float
    per_squared_token: float

    def __post_init__(self) -> None:
        for name in ("per_token", "per_squared_token"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or above and finite, got {getattr(self, name)}")
        if self.per_token == 0 == self.per_squared_token:
            raise ValueError("per_token and per_squared_token are both 0: every bin would be free")

    def of_bins(
        self,
        lengths: Integers,
        indices: npt.NDArray[np.integer[Any]],
        offsets: npt.NDArray[np.integer[Any]],
    ) -> Costs:
        """The cost of every bin, as ``Packer.pack_csr`` gives them. O(n).

        Args:
            lengths: integers ``[samples]``, in tokens.
            indices: integers ``[n]`` into ``lengths``, the bins one after the other.
            offsets: integers ``[bins + 1]``: bin ``b`` is ``indices[offsets[b]:offsets[b + 1]]``.

        Returns:
            float64 ``[bins]``; 0 for a bin of no samples.
        """
        # Floating point first: the square of an int32 length beyond 46,340 tokens overflows.
        tokens = np.asarray(lengths, dtype=np.float64)[np.asarray(indices, dtype=np.int64)]
        costs = tokens * (self.per_token + self.per_squared_token * tokens)
        bins = len(offsets) - 1
        bin_of = np.repeat(np.arange(bins), np.diff(offsets))
        return np.bincount(bin_of, costs, minlength=bins).astype(np.float64)  # of none: int64


def level(costs: npt.ArrayLike, ranks: int) -> Bins:
    """Deals the bins of one step to the ranks: equal counts, the dearest rank as cheap as can be.

    Longest processing time first (Graham, "Bounds on multiprocessing timing anomalies", SIAM J.
    Appl. Math. 17, 1969), here with equal counts: the dearest bin that is left goes to the cheapest
    rank that has room. Then the dearest rank swaps one of its bins for one of another rank, the
    swap of all that leaves the dearer of the two cheapest, until no swap makes it cheaper or the
    ranks are level to a millionth.

    Complexity: O(bins log bins) to deal, O(bins * bins / ranks) for each swap; in practice one
    or two swaps a rank.
    Ties: of equally dear bins the lower index is dealt first, to the lower of equally cheap ranks;
    of equally dear ranks the lower one swaps; of equally good swaps the first one found is made.

    >>> level([9, 8, 7, 6, 5, 4], ranks=2)  # 20 and 19
    array([[0, 3, 4],
           [1, 2, 5]])

    Args:
        costs: numbers ``[bins]``, 0 or above, in any unit.
        ranks: data-parallel ranks; ``bins`` is a multiple of it.

    Returns:
        int64 ``[ranks, bins / ranks]``, indices into ``costs``. A rank's bins come dearest first,
        of equal ones the lower index, so that microbatches that run at the same time are alike.

    Raises:
        ValueError: if the bins cannot be dealt in equal numbers, or a cost cannot be.
    """
    checked = _check(costs, ranks, bins_per_rank=1)
    assignment = _deal(checked, ranks)
    if assignment.shape[1] > 1 < ranks:
        _swap(checked, assignment)
    assignment.sort(axis=1)
    order = np.argsort(-checked[assignment], axis=1, kind="stable")
    return np.take_along_axis(assignment, order, axis=1)


def imbalance(costs: npt.ArrayLike, assignment: Bins) -> float:
    """How much longer a step takes than if its ranks were level.

    Args:
        costs: numbers ``[bins]``.
        assignment: int64 ``[ranks, bins per rank]`` as from :func:`level`, or ``[steps, ranks,
            bins per rank]`` as from :func:`window_order`.

    Returns:
        The dearest rank's cost over the ranks' mean, minus 1; of several steps the mean. 0 where
        nothing costs anything.
    """
    loads = np.asarray(costs, dtype=np.float64)[assignment].sum(axis=-1)
    if not loads.any():
        return 0.0
    mean, dearest = loads.mean(axis=-1), loads.max(axis=-1)
    ratio = np.divide(dearest, mean, out=np.ones_like(mean), where=mean > 0)
    return max(0.0, float(np.mean(ratio)) - 1)  # the mean of equal loads may be rounded up


def window_order(
    costs: npt.ArrayLike, ranks: int, *, window_steps: int, seed: int, bins_per_rank: int = 1
) -> Bins:
    """Orders the bins of an epoch into steps whose ranks are level, and keeps the order random.

    The bins, which come in random order, are cut into windows of ``window_steps`` steps. Inside a
    window they are sorted by cost, and neighbours share a step, which :func:`level` deals to the
    ranks. Then the steps of the window are shuffled, and within each it is drawn which rank gets
    which part, so that none always has the dearest. No bin leaves its window.

    Neighbours in cost leave the least excess to the dearest rank, and make a step's samples alike
    where a few long ones are the cost: a wider window levels better and mixes less. With some
    eight bins per rank a step levels well as it came, and ``window_steps=1`` is enough.

    Complexity: O(bins log(bins in a window)), and with several bins per rank :func:`level` a step.
    Ties: of equally dear bins the earlier one counts as dearer.

    Args:
        costs: numbers ``[bins]``, 0 or above, in the random order of the epoch.
        ranks: data-parallel ranks.
        window_steps: steps in a window; the last window may have fewer. 1 leaves every bin in the
            step in which it came, and only deals that step to its ranks.
        seed: of the draws, at least 0; give every epoch another one.
        bins_per_rank: bins each rank gets in a step.

    Returns:
        int64 ``[steps, ranks, bins_per_rank]``, every index into ``costs`` once.

    Raises:
        ValueError: if the bins do not fill whole steps, or a cost or number cannot be.
    """
    if window_steps < 1 or seed < 0:
        raise ValueError(f"window_steps={window_steps} must be at least 1, seed={seed} at least 0")
    checked = _check(costs, ranks, bins_per_rank)
    window_bins = window_steps * ranks * bins_per_rank
    steps = np.empty((checked.size // (ranks * bins_per_rank), ranks, bins_per_rank), np.int64)
    for window, first in enumerate(range(0, checked.size, window_bins)):
        # The third number keeps these draws apart from those of data.windows.
        rng = np.random.default_rng((seed, window, 2))
        ordered = _order_window(checked[first : first + window_bins], ranks, bins_per_rank, rng)
        steps[window * window_steps : (window + 1) * window_steps] = first + ordered
    return steps


def _check(costs: npt.ArrayLike, ranks: int, bins_per_rank: int) -> Costs:
    """Turns costs into float64 ``[bins]``, or says what keeps them from being dealt."""
    array = np.asarray(costs, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"costs must be a flat sequence of numbers, got shape {array.shape}")
    if ranks < 1 or bins_per_rank < 1:
        raise ValueError(f"ranks and bins_per_rank must be at least 1, got {ranks, bins_per_rank}")
    multiple = ranks * bins_per_rank
    if array.size % multiple:
        per_step = f" with {bins_per_rank} bins each" if bins_per_rank > 1 else ""
        raise ValueError(
            f"{array.size} bins cannot be dealt evenly to {ranks} data-parallel ranks{per_step}: "
            f"their number must be a multiple of {multiple}; packer.bins_multiple={multiple} "
            "makes it one"
        )
    wrong = np.flatnonzero(~((array >= 0) & np.isfinite(array)))
    if wrong.size:
        at = int(wrong[0])
        raise ValueError(f"costs[{at}] must be 0 or above and finite, got {array[at]}")
    return array


def _deal(costs: Costs, ranks: int) -> Bins:
    """Longest processing time first with equal counts: int64 ``[ranks, bins / ranks]``."""
    per_rank = costs.size // ranks
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    with_room = [(0.0, rank) for rank in range(ranks)]
    for index in np.argsort(-costs, kind="stable").tolist():
        load, rank = heapq.heappop(with_room)
        dealt[rank].append(index)
        if len(dealt[rank]) < per_rank:
            heapq.heappush(with_room, (load + float(costs[index]), rank))
    return np.array(dealt, dtype=np.int64).reshape(ranks, per_rank)


def _swap(costs: Costs, assignment: Bins) -> None:
    """Swaps bins of the dearest rank, in place, until no swap makes it cheaper or all are level."""
    held = costs[assignment]  # [ranks, bins per rank]
    loads = held.sum(axis=1)
    level_load = loads.mean() * (1 + _LEVEL)
    while (dearest := loads.max()) > level_load:
        top = int(loads.argmax())
        # Swapping bins that differ by half the gap would level both ranks. What a swap misses that
        # by, either way, is what the dearer of the two stays above their mean.
        half_gap = (dearest - loads) / 2
        missed = np.abs(held[top][:, None, None] - (held + half_gap[:, None]))  # [mine, rank, its]
        after = missed + (dearest - half_gap)[:, None]
        mine, other, its = np.unravel_index(after.argmin(), after.shape)
        if after[mine, other, its] >= dearest * (1 - _LEAST_GAIN):
            return
        for array in (assignment, held):
            array[top, mine], array[other, its] = array[other, its], array[top, mine]
        # Summed anew: adding differences to the sums would gather rounding.
        loads[[top, other]] = held[[top, other]].sum(axis=1)


def _order_window(costs: Costs, ranks: int, bins_per_rank: int, rng: np.random.Generator) -> Bins:
    """Orders one window's bins: int64 ``[steps, ranks, bins_per_rank]``."""
    sorted_steps = np.argsort(-costs, kind="stable").reshape(-1, ranks * bins_per_rank)
    steps = rng.permutation(sorted_steps)
    # One bin per rank needs no levelling, and an epoch of such steps may be long.
    if bins_per_rank == 1:
        dealt = steps[:, :, None]
    else:
        dealt = np.stack([step[level(costs[step], ranks)] for step in steps])
    rank_order = rng.permuted(np.tile(np.arange(ranks), (len(steps), 1)), axis=1)
    return np.take_along_axis(dealt, rank_order[:, :, None], axis=1)
