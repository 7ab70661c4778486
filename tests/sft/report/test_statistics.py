"""Intervals against closed forms, and how often noise is taken for a difference."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from sft.report.statistics import Spread, compare, drift


def test_two_choices_get_the_paired_t_interval() -> None:
    a = {1: 10.0, 2: 12.0, 3: 11.5, 4: 13.0}
    b = {1: 9.0, 2: 11.5, 3: 10.1, 4: 12.2}
    difference = compare({"a": a, "b": b}, ratios=False).difference("a", "b")
    assert difference is not None
    paired = stats.ttest_rel(list(a.values()), list(b.values())).confidence_interval(0.95)
    assert (difference.low, difference.high) == pytest.approx((paired.low, paired.high))
    assert difference.value == pytest.approx(0.925)
    assert difference.seeds == 4


def test_several_choices_get_tukeys_interval() -> None:
    """Without differences between seeds the block design is Tukey's, less the blocks' freedom."""
    rng = np.random.default_rng(5)
    values = {c: {s: float(v) for s, v in enumerate(rng.normal(size=6))} for c in "abcd"}
    comparison = compare(values, ratios=False)
    table = np.array([list(values[c].values()) for c in "abcd"])
    residuals = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    degrees = 3 * 5
    error = math.sqrt((residuals**2).sum() / degrees)
    half = stats.studentized_range.ppf(0.95, 4, degrees) * error / math.sqrt(6)
    wider = 0
    for i, j in itertools.combinations(range(4), 2):
        difference = comparison.difference("abcd"[i], "abcd"[j])
        assert difference is not None and difference.high is not None
        assert difference.value == pytest.approx(table[i].mean() - table[j].mean())
        own = stats.ttest_rel(table[i], table[j]).confidence_interval(0.95)
        expected = max(half, float(own.high) - difference.value)
        assert difference.high - difference.value == pytest.approx(expected, rel=1e-6)
        wider += expected > half
    assert wider < 3  # Tukey's it is, but for pairs that are noisier than the rest


def test_equals_to_the_last_digit_do_not_hide_the_noise_of_another() -> None:
    """Seven choices that are the same, and one that is around them by chance."""
    same = {1: 2.0, 2: 2.1, 3: 1.95}
    noisy = {1: 2.05, 2: 2.11, 3: 1.96}
    values = {f"same{i}": same for i in range(7)} | {"noisy": noisy}
    difference = compare(values, ratios=False).difference("noisy", "same0")
    assert difference is not None and difference.low is not None
    assert difference.low < 0 and not difference.real


def test_ratios_compare_logarithms_and_a_common_factor_of_a_seed_cancels() -> None:
    slow = {seed: 100.0 * seed for seed in (1, 2, 3)}
    noise = {1: 1.01, 2: 0.99, 3: 1.0}
    fast = {seed: 1.3 * value * noise[seed] for seed, value in slow.items()}
    difference = compare({"fast": fast, "slow": slow}, ratios=True).difference("fast", "slow")
    assert difference is not None and difference.real
    assert math.exp(difference.value) == pytest.approx(1.3, rel=1e-3)


def test_noise_alone_is_rarely_called_a_difference() -> None:
    """At most 5 % of sweeps over ten equals may call the best better than the worst."""
    rng = np.random.default_rng(0)
    trials, wrong = 300, 0
    for _ in range(trials):
        block = rng.normal(size=3)
        values = {f"c{i}": {s: float(block[s] + rng.normal()) for s in range(3)} for i in range(10)}
        comparison = compare(values, ratios=False)
        means = {c: float(np.mean(list(v.values()))) for c, v in values.items()}
        best, worst = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
        difference = comparison.difference(best, worst)
        assert difference is not None
        wrong += difference.real
    # Two standard errors above 5 %.
    assert wrong / trials < 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize(
    ("a", "b", "real"),
    [
        ({1: 100.0, 2: 100.1}, {1: 50.0, 2: 50.1}, True),
        # Their order is the same in both seeds, by exactly the same; their ranges are wider.
        ({1: 100.0, 2: 140.0}, {1: 95.0, 2: 135.0}, False),
        ({1: 100.0}, {1: 50.0}, False),
        ({1: 100.0, 2: 101.0}, {2: 50.0, 3: 51.0}, False),
    ],
)
def test_few_seeds_need_more(a: dict[int, float], b: dict[int, float], real: bool) -> None:
    difference = compare({"a": a, "b": b}, ratios=False).difference("a", "b")
    assert difference is not None
    assert difference.real is real


def test_one_run_each_has_no_interval() -> None:
    difference = compare({"a": {1: 2.0}, "b": {1: 1.0}}, ratios=False).difference("a", "b")
    assert difference is not None
    assert (difference.value, difference.low, difference.high) == (1.0, None, None)
    assert "no spread is known" in difference.why


def test_no_common_seed_is_no_comparison() -> None:
    values = {"a": {1: 2.0, 2: 2.1}, "b": {3: 1.0, 4: 1.1}}
    assert compare(values, ratios=False).difference("a", "b") is None


def test_exactly_equal_values_do_not_differ_by_their_rounding() -> None:
    a = {1: 0.1 + 0.2, 2: 0.7, 3: 0.9}
    b = {1: 0.3, 2: 0.7, 3: 0.9}
    difference = compare({"a": a, "b": b}, ratios=False).difference("a", "b")
    assert difference is not None and not difference.real


def test_a_missing_seed_leaves_the_others_paired() -> None:
    seeds = {1: 0.0, 2: 5.0, 3: -4.0}
    wiggle = {"a": 0.01, "b": -0.01, "c": 0.02}
    values = {
        c: {s: base + v + (0.01 if (s + ord(c)) % 2 else wiggle[c]) for s, v in seeds.items()}
        for c, base in (("a", 10.0), ("b", 11.0), ("c", 12.0))
    }
    del values["c"][3]
    difference = compare(values, ratios=False).difference("c", "a")
    assert difference is not None
    assert difference.value == pytest.approx(2.0, abs=0.05)
    assert difference.seeds == 2


def test_spread() -> None:
    spread = Spread.of([1.0, None, 3.0])
    assert spread == Spread(n=2, mean=2.0, sd=math.sqrt(2), low=1.0, high=3.0)
    assert Spread.of([4.0]) == Spread(n=1, mean=4.0, sd=None, low=4.0, high=4.0)
    assert Spread.of([None, math.nan]) is None


def test_drift_is_found_where_there_is_one_and_not_otherwise() -> None:
    rng = np.random.default_rng(3)
    base = {"a": 100.0, "b": 150.0}
    steady, slowing = [], []
    for order in range(12):
        choice = "ab"[order % 2]
        noise = math.exp(rng.normal(0, 0.005))
        steady.append((choice, float(order), base[choice] * noise))
        slowing.append((choice, float(order), base[choice] * noise * 0.98**order))
    found = drift(slowing)
    assert found is not None and found.p_value < 0.001
    assert found.change == pytest.approx(0.98**11 - 1, abs=0.03)
    none = drift(steady)
    assert none is not None and none.p_value > 0.05
    assert drift([("a", 0.0, 1.0), ("b", 1.0, 2.0)]) is None
