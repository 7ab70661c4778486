"""The measuring behind ``bench/packers.py``: what is timed, what is checked and what is skipped."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from distributions import Distribution
from peers import Call, Contender

from data.packers.bounds import lower_bound

RANKS = 8
BINS_PER_RANK = 8
# Lengths in the run that says how long the smallest size will take.
PROBE = 1000
# A call shorter than this is repeated within its round, up to so many times.
SHORT_S, MOST_REPEATS = 0.02, 25


@dataclass(kw_only=True)
class Result:
    """One packer on one set of lengths.

    Attributes:
        name: the packer's.
        distribution: the lengths'.
        capacity: tokens a bin may hold.
        n: how many lengths.
        bound: the bins that no packing can go below.
        cpu_s: CPU seconds, all threads, the best of each round.
        wall_s: the wall-clock seconds of the same calls.
        bins: how many bins it filled.
        fill: tokens in a bin beside its capacity, 0 to 1.
        balance: see :func:`balance`; none where there are too few bins.
        problem: what is wrong with its bins, or empty.
        skipped: why there is nothing to see, or empty.
    """

    name: str
    distribution: str
    capacity: int
    n: int
    bound: int
    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    bins: int | None = None
    fill: float | None = None
    balance: float | None = None
    problem: str = ""
    skipped: str = ""

    @property
    def seconds(self) -> float | None:
        """The best CPU seconds of all rounds."""
        return min(self.cpu_s, default=None)

    @property
    def speed(self) -> float | None:
        """Sequences per CPU second."""
        return self.n / self.seconds if self.seconds else None

    @property
    def over_percent(self) -> float | None:
        """Bins over the bound, in per cent of it."""
        return None if self.bins is None else 100 * (self.bins - self.bound) / self.bound

    def raw(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        return {**asdict(self), "over_percent": self.over_percent, "sequences_per_s": self.speed}

    @classmethod
    def of_raw(cls, raw: dict[str, Any]) -> Result:
        """What ``raw`` gave, read back."""
        return cls(**{known.name: raw[known.name] for known in fields(cls)})


def balance(costs: npt.NDArray[np.float64], seed: int = 0) -> float | None:
    """How much longer the slowest of 8 ranks works than the mean one, averaged over the steps.

    The bins are shuffled once and dealt in turn, 8 to each rank in a step; the last, incomplete
    step is left out.

    Args:
        costs: work per bin, here the sum of squared lengths, ``[bins]``.
        seed: of the shuffle.

    Returns:
        Mean over the steps of maximum / mean - 1, or none where not one step is complete.
    """
    shuffled = np.random.default_rng(seed).permutation(costs)
    steps = len(shuffled) // (RANKS * BINS_PER_RANK)
    if not steps:
        return None
    dealt = shuffled[: steps * RANKS * BINS_PER_RANK].reshape(steps, BINS_PER_RANK, RANKS)
    ranks = dealt.sum(axis=1)
    return float(np.mean(ranks.max(axis=1) / ranks.mean(axis=1)) - 1)


def problem_with(
    lengths: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer[Any]],
    offsets: npt.NDArray[np.int64],
    capacity: int,
) -> str:
    """What keeps bins from being a packing, in a few words; empty for a packing."""
    if offsets[0] != 0 or offsets[-1] != len(indices) or np.any(np.diff(offsets) < 0):
        return "offsets out of order"
    if len(indices) and (indices.min() < 0 or indices.max() >= lengths.size):
        return "indices out of range"
    times = np.bincount(indices, minlength=lengths.size)
    if np.any(times != 1):
        missing, repeated = np.count_nonzero(times == 0), np.count_nonzero(times > 1)
        return f"{missing:,} samples missing, {repeated:,} repeated"
    too_full = np.count_nonzero(_bin_sums(lengths[indices], offsets) > capacity)
    if too_full:
        return f"{too_full:,} bins above the capacity"
    empty = np.count_nonzero(np.diff(offsets) == 0)
    return f"{empty:,} empty bins (not counted)" if empty else ""


def _bin_sums(
    values: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Sum of the values of every bin, also of empty ones."""
    running = np.concatenate(([0], np.cumsum(values)))
    sums: npt.NDArray[np.int64] = np.diff(running[offsets])
    return sums


def describe(result: Result, output: Any, contender: Contender, lengths: Any) -> None:
    """Checks one output and, the first time, writes down what it is worth."""
    try:
        indices, offsets = contender.to_csr(output, lengths)
    except ValueError as error:
        result.problem = str(error)
        return
    problem = problem_with(lengths, indices, offsets, result.capacity)
    result.problem = result.problem or problem
    if result.bins is not None:
        return
    tokens = lengths[indices]
    filled = np.diff(offsets) > 0
    result.bins = int(np.count_nonzero(filled))
    result.fill = float(lengths.sum() / (result.bins * result.capacity))
    result.balance = balance(_bin_sums(tokens**2, offsets)[filled].astype(np.float64))


def timed(call: Call, prepared: Any, capacity: int) -> tuple[float, float, Any]:
    """One call without the cycle collector: CPU seconds, wall seconds, output."""
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        output = call(prepared, capacity)
        return time.process_time() - cpu, time.perf_counter() - wall, output
    finally:
        gc.enable()


def predicted(history: Sequence[tuple[int, float]], n: int) -> float:
    """The seconds that ``n`` lengths will take, from ``(lengths, seconds)`` measured before.

    The growth between the last two sizes goes on, as a power of the size between 1 and 3. After a
    single size it is taken for quadratic.
    """
    (last_n, last), power = history[-1], 2.0
    if len(history) > 1 and history[-2][1] > 0 < last:
        before_n, before = history[-2]
        power = math.log(last / before) / math.log(last_n / before_n)
    return last * (n / last_n) ** min(max(power, 1.0), 3.0)


class Run:
    """Measures packers on growing sets of lengths of one distribution at one capacity."""

    def __init__(
        self, contenders: Sequence[Contender], rounds: int, limit: float, say: Callable[[str], None]
    ) -> None:
        """Takes what all sizes share.

        Args:
            contenders: packers of packages that are installed.
            rounds: how often all of them take their turn.
            limit: CPU seconds; a call that is predicted to take more is skipped, and a packer that
                has spent more in a case runs no further round.
            say: told what is going on.
        """
        self.contenders, self.rounds, self.limit, self.say = contenders, rounds, limit, say

    def __call__(
        self, distribution: Distribution, capacity: int, sizes: Sequence[int]
    ) -> Iterator[Result]:
        """All results of one distribution at one capacity, size by size."""
        history = {contender.name: self._probe(contender, distribution, capacity)
                   for contender in self.contenders}  # fmt: skip
        for n in sorted(sizes):
            yield from self._case(distribution, capacity, n, history)

    def _probe(
        self, contender: Contender, distribution: Distribution, capacity: int
    ) -> list[tuple[int, float]] | str:
        """The first two history entries: the better of two calls, one of which may compile."""
        history = []
        try:
            for n in (PROBE // 4, PROBE):
                call = contender.make()
                prepared = contender.prepare(distribution.sample(n, capacity))
                history.append((n, min(timed(call, prepared, capacity)[0] for _ in range(2))))
            return history
        except Exception as error:  # anything a peer may come up with
            return f"failed: {type(error).__name__}: {error}"[:120]

    def _case(
        self, distribution: Distribution, capacity: int, n: int,
        history: dict[str, list[tuple[int, float]] | str],
    ) -> list[Result]:  # fmt: skip
        """One size: all rounds, then what they say about the next size."""
        lengths = distribution.sample(n, capacity)
        bound = lower_bound(lengths, capacity)
        results = {
            name: Result(name=name, distribution=distribution.name, capacity=capacity, n=n,
                         bound=bound, skipped=self._reason(past, n))
            for name, past in history.items()
        }  # fmt: skip
        self.say(f"{distribution.name}, C={capacity:,}, n={n:,}: bound {bound:,} bins")
        for _ in range(self.rounds):
            for contender in self.contenders:
                result = results[contender.name]
                if not result.skipped and sum(result.cpu_s) <= self.limit:
                    self._round(contender, lengths, result)
        for name, result in results.items():
            past = history[name]
            if result.seconds is not None and not isinstance(past, str):
                past.append((n, result.seconds))
        self._tell(results)
        return list(results.values())

    def _reason(self, past: list[tuple[int, float]] | str, n: int) -> str:
        """Why not to try this size; empty to try it."""
        if isinstance(past, str):
            return past
        seconds = predicted(past, n)
        if seconds <= self.limit:
            return ""
        return f"skipped: {seconds:,.3g} s predicted, the limit is {self.limit:g} s"

    def _round(self, contender: Contender, lengths: npt.NDArray[np.int64], result: Result) -> None:
        """One packer's turn: a call, or several if it is short, of which the first is checked."""
        prepared = contender.prepare(lengths)
        # Once a turn: before every call, it would have each of a packer's calls find its data and
        # its code gone from the processor's caches.
        gc.collect()
        best: tuple[float, float] | None = None
        try:
            call, repeats = contender.make(), MOST_REPEATS
            while repeats > 0:
                cpu, wall, output = timed(call, prepared, result.capacity)
                if best is None:
                    describe(result, output, contender, lengths)
                    repeats = min(MOST_REPEATS, math.ceil(SHORT_S / max(cpu, 1e-9)))
                best = min(best or (cpu, wall), (cpu, wall))
                repeats -= 1
                del output
        except Exception as error:  # anything a peer may come up with
            result.skipped = f"failed: {type(error).__name__}: {error}"[:120]
            return
        result.cpu_s.append(best[0])
        result.wall_s.append(best[1])

    def _tell(self, results: dict[str, Result]) -> None:
        """One line a packer."""
        for name, result in results.items():
            if result.seconds is None:
                self.say(f"  {name}: {result.skipped}")
            else:
                self.say(f"  {name}: {result.seconds:.5f} s, {result.bins:,} bins {result.problem}")
