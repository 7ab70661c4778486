"""When a difference is one: spreads, comparisons within seeds, drift.

Choices are compared in a randomised block design, the seed being the block: value = choice + seed +
noise. Jobs of one seed run beside each other and see the same conversations, so both the order of
the data and a machine that slows down cancel. The intervals are Tukey's: they hold for all pairs at
once, so that it does not matter that the best was picked after looking.

Tukey's intervals take one noise for all. Where some choices are equal to the last digit, as packers
of one step are in what they learn, that would make the others look less noisy than they are. So an
interval is never narrower than the paired t interval of its own two choices, which for two choices
is all there is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95

Values = Mapping[str, Mapping[Hashable, float]]  # by choice, then by seed, or round of one


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Values over seeds.

    Attributes:
        n: how many.
        mean: their mean.
        sd: their standard deviation; None for a single one.
        low: the least.
        high: the greatest.
    """

    n: int
    mean: float
    sd: float | None
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """Sum up those values that are there; None for none."""
        known = [float(v) for v in values if v is not None and math.isfinite(v)]
        if not known:
            return None
        return cls(
            n=len(known),
            mean=float(np.mean(known)),
            sd=float(np.std(known, ddof=1)) if len(known) > 1 else None,
            low=min(known),
            high=max(known),
        )


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One choice beside another.

    Attributes:
        value: the first less the second; of logarithms where the comparison is of ratios.
        low: the lower end of the interval; None where no spread is known.
        high: the upper end.
        seeds: how many both have.
        real: whether it exceeds the spread.
        why: in words.
    """

    value: float
    low: float | None
    high: float | None
    seeds: int
    real: bool
    why: str


@dataclass(kw_only=True)
class Comparison:
    """All choices beside each other; :func:`compare` makes it.

    Attributes:
        values: by choice and seed; logarithms where ratios are compared.
        residual_sd: the noise that remains within a seed; None where none can be told.
        degrees: of freedom of that noise.
    """

    values: dict[str, dict[Hashable, float]]
    residual_sd: float | None = None
    degrees: int = 0
    _inverse: NDArray[np.float64] | None = None
    _effects: dict[str, float] = field(default_factory=dict)
    _critical: float | None = None

    @property
    def choices(self) -> list[str]:
        """Those with a value."""
        return list(self.values)

    def ranked(self) -> list[str]:
        """The choices, the greatest first; what a seed adds to all of its runs is left out."""
        means = {c: float(np.mean(list(v.values()))) for c, v in self.values.items()}
        return sorted(self.values, key=lambda c: -self._effects.get(c, means[c]))

    def difference(self, first: str, second: str) -> Difference | None:
        """The first less the second; None where they share no seed."""
        a, b = self.values[first], self.values[second]
        shared = sorted(a.keys() & b.keys(), key=str)
        if not shared:
            return None
        pairs = [a[s] - b[s] for s in shared]
        if len(shared) == 1 or self._critical is None or self._inverse is None:
            return Difference(
                value=float(np.mean(pairs)), low=None, high=None, seeds=len(shared), real=False,
                why="one run each: no spread is known",
            )  # fmt: skip
        value = self._effects[first] - self._effects[second]
        assert self.residual_sd is not None
        contrast = np.zeros(len(self._inverse))
        contrast[self.choices.index(first)] += 1
        contrast[self.choices.index(second)] -= 1
        error = self.residual_sd * math.sqrt(max(float(contrast @ self._inverse @ contrast), 0.0))
        half = self._critical * error
        own_low, own_high = _paired(pairs)
        low, high = min(value - half, own_low), max(value + half, own_high)
        real, why = _judge(pairs, [a[s] for s in shared], [b[s] for s in shared], low, high)
        return Difference(value=value, low=low, high=high, seeds=len(shared), real=real, why=why)

    def within_sd(self) -> float | None:
        """The standard deviation over seeds within a choice, pooled."""
        squares, degrees = 0.0, 0
        for by_seed in self.values.values():
            squares += float(np.var(list(by_seed.values())) * len(by_seed))
            degrees += len(by_seed) - 1
        return math.sqrt(squares / degrees) if degrees else None


def _judge(
    pairs: Sequence[float], a: Sequence[float], b: Sequence[float], low: float, high: float
) -> tuple[bool, str]:
    if low <= 0 <= high:
        return False, "the 95 % interval includes no difference"
    # A standard deviation of two values says little: their ranges must be apart as well.
    if len(pairs) == 2 and abs(float(np.mean(pairs))) <= max(max(a) - min(a), max(b) - min(b)):
        return False, "two seeds, and the difference is within their range"
    return True, "the 95 % interval excludes no difference"


def compare(values: Values, *, ratios: bool) -> Comparison:
    """Fit choice + seed and prepare the intervals.

    Args:
        values: by choice and seed; a choice without one is left out.
        ratios: compare logarithms, as speeds ask for; all values must be positive.
    """
    table = {
        choice: {s: math.log(v) if ratios else float(v) for s, v in by_seed.items()}
        for choice, by_seed in values.items()
        if by_seed
    }
    result = Comparison(values=table)
    seeds = sorted({s for by_seed in table.values() for s in by_seed}, key=str)
    cells = [(c, s) for c, by_seed in table.items() for s in by_seed]
    if len(table) < 2:
        return result
    names = list(table)
    design = np.zeros((len(cells), len(names) + len(seeds)))
    for row, (choice, seed) in enumerate(cells):
        design[row, names.index(choice)] = 1
        design[row, len(names) + seeds.index(seed)] = 1
    observed = np.array([table[c][s] for c, s in cells])
    fitted, _, rank, _ = np.linalg.lstsq(design, observed, rcond=None)
    result.degrees = len(cells) - int(rank)
    if result.degrees < 1:
        return result
    residuals = observed - design @ fitted
    # What is left of exact equality is rounding, not noise; and no noise is less than rounding.
    floor = 1e-12 * max(1.0, float(np.abs(observed).max()))
    result.residual_sd = max(math.sqrt(float(residuals @ residuals) / result.degrees), floor)
    result._inverse = np.linalg.pinv(design.T @ design)
    result._effects = dict(zip(names, map(float, fitted), strict=False))
    result._critical = _tukey(len(names), result.degrees)
    return result


def _paired(pairs: Sequence[float]) -> tuple[float, float]:
    """The t interval of the differences of one pair of choices, whatever the others did."""
    error = float(np.std(pairs, ddof=1)) / math.sqrt(len(pairs))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(pairs) - 1)) * error
    return float(np.mean(pairs)) - half, float(np.mean(pairs)) + half


@functools.cache
def _tukey(choices: int, degrees: int) -> float:
    """How many standard errors the difference of any two of ``choices`` equals stays within."""
    if choices == 2:
        return float(stats.t.ppf((1 + LEVEL) / 2, degrees))
    return float(stats.studentized_range.ppf(LEVEL, choices, degrees)) / math.sqrt(2)


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Whether speeds changed with the order of the jobs.

    Attributes:
        change: from the first job to the last, relative.
        p_value: how likely so much would be without a drift.
        runs: how many runs say so.
    """

    change: float
    p_value: float
    runs: int


def drift(ordered: Sequence[tuple[str, float, float]]) -> Drift | None:
    """The trend of speeds over a sweep.

    Args:
        ordered: (choice, position in the sweep, speed).

    Returns:
        None where too few choices ran twice.
    """
    by_choice: dict[str, list[tuple[float, float]]] = {}
    for choice, position, speed in ordered:
        by_choice.setdefault(choice, []).append((position, math.log(speed)))
    points = []
    for members in by_choice.values():
        if len(members) > 1:
            places, speeds = (float(np.mean(column)) for column in zip(*members, strict=True))
            points += [(p - places, s - speeds) for p, s in members]
    groups = sum(len(members) > 1 for members in by_choice.values())
    x, y = (np.array(column) for column in zip(*points, strict=True)) if points else ((), ())
    degrees = len(points) - groups - 1
    if degrees < 2 or not (square := float(np.sum(np.square(x)))):
        return None
    slope = float(np.dot(x, y)) / square
    noise = float(np.sum(np.square(y - slope * np.asarray(x)))) / degrees
    error = math.sqrt(noise / square)
    order = [position for _, position, _ in ordered]
    return Drift(
        change=math.expm1(slope * (max(order) - min(order))),
        p_value=float(2 * stats.t.sf(abs(slope) / error, degrees)) if error else float(slope == 0),
        runs=len(points),
    )
