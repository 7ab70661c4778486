"""The bound of the cutting-stock linear program: often far closer to the optimum than a formula."""

from __future__ import annotations

import math
import operator

import numpy as np
import numpy.typing as npt

from data.packers.bounds import lower_bound
from data.packers.items import Integers, check_lengths

type _Ints = npt.NDArray[np.int64]

_SCALE = 2**30  # prices are whole multiples of 1 / _SCALE bins
_SLACK = 2**10  # a bin worth this much too much is the solver's tolerance, not a new pattern
_MOST_CELLS = 2**17  # of the knapsack's table, one per unit of capacity


def lp_bound(
    lengths: Integers,
    capacity: int,
    *,
    largest_alphabet: int = 400,
    grid: int | None = None,
    most_rounds: int = 100,
) -> int:
    """A number of bins that no packing can go below: the linear program of Gilmore and Gomory.

    A pattern says how many samples of each length a bin holds. The program gives every pattern a
    number of bins, in fractions too, so that all samples have a place in the fewest bins; that
    number, rounded up, is the bound. As in the original, a pattern may hold more samples of a
    length than there are. The bound is never below ``lower_bound``.

    There are too many patterns to list, so they are generated. Each round solves the dual of the
    program over the patterns found so far, which sets a price for each length, and a knapsack finds
    what the dearest possible bin is worth at such prices. As no bin is worth more, the worth of all
    samples divided by it is a bound (Farley): a run that is cut short answers with a valid bound
    too, only a weaker one.

    No rounding error can lift the answer above the optimum: floating point only proposes prices.
    They are rounded down to integers, and from there on the knapsack and the division are exact, so
    that Farley's argument holds for the very numbers in use.

    Many different lengths would make it slow. Where there are more than ``largest_alphabet``, the
    lengths ``l`` and the capacity ``C`` are divided by a grid step ``g`` and rounded down. Whatever
    shares a bin still does so then, as ``sum(l // g) <= sum(l) // g <= C // g``: every packing of
    the lengths is one of the rounded lengths, and their bound holds for both.

    ``max_samples_per_bin`` is left out of account; the bound holds with it, but may be far off.

    Source: Gilmore and Gomory, "A linear programming approach to the cutting-stock problem", Oper.
    Res. 9 (1961); Farley, "A note on bounding a class of linear programming problems, including
    cutting stock problems", Oper. Res. 38 (1990).
    Complexity: a round takes O(m C / g) time for ``m`` different lengths, besides its linear
    program; ten or twenty rounds are usual.

    Ten samples of 4 have 40 tokens, which ``lower_bound`` puts into 4 bins of 10. But a bin holds
    two of them: at 1/2 a bin per sample no bin is worth more than 1, and all ten are worth 5.

    >>> lp_bound([4] * 10, 10)
    5

    Args:
        lengths: integers ``[n]``, in tokens.
        capacity: the most tokens a bin may hold.
        largest_alphabet: the most different lengths that are told apart.
        grid: the step in tokens. ``None`` chooses the smallest that leaves at most
            ``largest_alphabet`` different lengths (and a table of a bearable size), among the
            multiples of the lengths' greatest common divisor, which itself loses nothing.
        most_rounds: the most prices to try.

    Returns:
        The bound, in bins; 0 for no lengths.

    Raises:
        ValueError: for what a packer would refuse, too; if an option is below 1.
        ModuleNotFoundError: if scipy, which solves the linear programs, is not installed.
    """
    capacity = operator.index(capacity)
    checked = check_lengths(lengths, capacity).astype(np.int64)
    for name, option in (
        ("largest_alphabet", largest_alphabet),
        ("grid", grid),
        ("most_rounds", most_rounds),
    ):
        if option is not None and option < 1:
            raise ValueError(f"{name} must be at least 1, got {option}")
    bound = lower_bound(checked, capacity)
    if not checked.size:
        return bound
    step = grid or _step(np.unique(checked), capacity, largest_alphabet)
    sizes, counts = np.unique(checked // step, return_counts=True)
    if sizes[0] == 0:  # these take no room at all
        sizes, counts = sizes[1:], counts[1:]
    if not sizes.size:
        return bound
    return _raise_bound(bound, sizes, counts, capacity // step, most_rounds)


def _step(distinct: _Ints, capacity: int, largest_alphabet: int) -> int:
    """The grid step, in tokens, for lengths ``[m]`` that are all different.

    Coarser steps leave fewer lengths, with rare exceptions: the answer is coarse enough, and the
    next finer multiple is not.
    """
    unit = int(np.gcd.reduce(distinct))

    def coarse_enough(factor: int) -> bool:
        left = np.unique(distinct // (unit * factor))
        return bool(np.count_nonzero(left) <= largest_alphabet)

    high = -(-capacity // (unit * _MOST_CELLS))
    low = high - 1
    while not coarse_enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if coarse_enough(middle) else (middle, high)
    return unit * high


def _raise_bound(bound: int, sizes: _Ints, counts: _Ints, capacity: int, most_rounds: int) -> int:
    """Column generation. A bin is worth 1, or ``_SCALE`` where prices are integers.

    The linear program's own prices jump about and give poor bounds for long. So the prices that are
    tried lie halfway to the best safe ones, at which no bin is worth more than 1. If a bin is worth
    more at the prices tried, its pattern rules out the program's; if none is, the prices tried are
    safe, and half of what was left to gain is gained. (Ben-Ameur and Neto, "Acceleration of
    cutting-plane and column generation algorithms", Networks 49 (2007), call this in-out.)

    Args:
        bound: a bound that is known already, in bins.
        sizes: ``[m]``, ascending, all different, from 1 to the capacity.
        counts: ``[m]``, how many samples have each size.
        capacity: in the unit of the sizes.
        most_rounds: the most prices to try.

    Returns:
        The best bound found, in bins.
    """
    try:
        from scipy.optimize import linprog  # takes long to import
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the linear programming bound needs scipy: pip install scipy", name="scipy"
        ) from error

    patterns = _first_patterns(sizes, counts, capacity)
    safe = sizes / capacity
    found, ideal = patterns, safe
    for _ in range(most_rounds):
        if found.size:
            solved = linprog(-counts, A_ub=patterns, b_ub=np.ones(len(patterns)), method="highs")
            if solved.x is None:
                break
            ideal = np.maximum(solved.x, 0)
        # Patterns that are still missing can only lower this, so no later round can exceed it.
        if bound >= math.ceil(counts @ ideal - 1e-6):
            break
        prices = np.floor((safe + ideal) / 2 * _SCALE).astype(np.int64)
        worth = _knapsack(sizes, prices, capacity)
        total, dearest = int(counts @ prices), int(worth[-1])
        bound = max(bound, -(-total // dearest))
        if total / dearest > counts @ safe:
            safe = prices / dearest
        found = _improving(sizes, prices, worth)
        patterns = np.concatenate([patterns, found])
    return bound


def _first_patterns(sizes: _Ints, counts: _Ints, capacity: int) -> _Ints:
    """Patterns ``[p, m]`` to start from: each size alone, and those of first-fit decreasing."""
    patterns = [np.diag(capacity // sizes)]
    left = counts.copy()
    while left.any():
        pattern = np.zeros_like(sizes)
        room = capacity
        for index in np.flatnonzero(left)[::-1]:
            pattern[index] = min(room // sizes[index], left[index])
            room -= pattern[index] * sizes[index]
        used = pattern > 0
        left -= pattern * np.min(left[used] // pattern[used])  # as many bins as can be alike
        patterns.append(pattern[np.newaxis])
    return np.concatenate(patterns)


def _knapsack(sizes: _Ints, prices: _Ints, capacity: int) -> _Ints:
    """What a bin with each room can be worth at most: ``[capacity + 1]``.

    Any number of samples may have the same size. Those of one size move worth up the table by its
    size, and ``k`` of them add ``k`` prices. With the rooms in rows of that size and ``row *
    price`` taken off, that is a running maximum down the columns.
    """
    worth = np.zeros(capacity + 1, dtype=np.int64)
    for size, price in zip(sizes.tolist(), prices.tolist(), strict=True):
        rows = -(-worth.size // size)
        table = np.zeros((rows, size), dtype=np.int64)
        table.reshape(-1)[: worth.size] = worth
        lift = price * np.arange(rows)[:, np.newaxis]
        table -= lift
        np.maximum.accumulate(table, axis=0, out=table)
        table += lift
        worth = table.reshape(-1)[: worth.size]
    return worth


def _improving(sizes: _Ints, prices: _Ints, worth: _Ints) -> _Ints:
    """For each size the dearest pattern with it, where that is worth more than 1: ``[p, m]``."""
    dearest = prices + worth[worth.size - 1 - sizes]
    firsts = np.flatnonzero(dearest > _SCALE + _SLACK)
    patterns = np.zeros((firsts.size, sizes.size), dtype=np.int64)
    for pattern, first in zip(patterns, firsts, strict=True):
        index, room = int(first), worth.size - 1
        while True:
            pattern[index] += 1
            room -= int(sizes[index])
            if worth[room] == 0:
                break
            # Some size is in the dearest filling of this room, the rest of which is dearest too.
            fitting = sizes[: np.searchsorted(sizes, room, side="right")]
            filled = prices[: fitting.size] + worth[room - fitting]
            index = int(np.argmax(filled == worth[room]))
    return np.unique(patterns, axis=0)
