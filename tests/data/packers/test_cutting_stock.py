"""The linear program's bound: what the program over all patterns gives, never above the optimum."""

import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packers import load_packer
from data.packers.bounds import lower_bound
from data.packers.cutting_stock import lp_bound
from tests.data.packers.textbook import fewest_bins


def program_over_all_patterns(lengths, capacity):
    """The linear program with no pattern left out, in fractions of bins."""
    sizes, counts = np.unique(lengths, return_counts=True)
    patterns = np.array(list(product(*(range(capacity // size + 1) for size in sizes))))
    patterns = patterns[patterns @ sizes <= capacity]
    solved = scipy.optimize.linprog(np.ones(len(patterns)), A_ub=-patterns.T, b_ub=-counts)
    return solved.fun


@st.composite
def instances(draw, most):
    capacity = draw(st.integers(1, 40))
    lengths = draw(st.lists(st.integers(1, capacity), min_size=1, max_size=most))
    return lengths, capacity


@pytest.mark.parametrize(
    ("lengths", "capacity", "bins"),
    [
        ([], 10, 0),
        ([10], 10, 1),
        ([5, 5, 1], 10, 2),
        ([7, 7, 7, 4, 4, 4], 10, 5),  # no 7 shares a bin with a 4
        ([5, 4, 3, 3, 3, 2], 10, 2),  # 5 + 3 + 2 and 4 + 3 + 3
        ([4] * 10, 10, 5),  # two 4s per bin
        ([34] * 9, 100, 5),  # 4.5 bins of two
        ([34, 35, 36] * 6, 100, 9),  # two of any per bin
        ([60] * 4 + [34] * 6, 100, 5),  # four times 60 + 34, and 34 + 34
        ([2**29] * 8, 2**30, 4),  # a common divisor keeps the table small
        ([2**29 + 1] * 8, 2**30, 8),
    ],
)
def test_worked_by_hand(lengths, capacity, bins):
    assert lp_bound(lengths, capacity) == bins


def test_it_sees_what_the_formulas_do_not():
    assert [lower_bound([4] * 10, 10), lp_bound([4] * 10, 10)] == [4, 5]
    assert [lower_bound([34, 35, 36] * 6, 100), lp_bound([34, 35, 36] * 6, 100)] == [7, 9]


@pytest.mark.parametrize(
    ("lengths", "capacity", "fewest", "ffd"),
    [
        # 23 + 12 + 9 and 13 + 13 + 9 + 9 are full; FFD pairs 23 with 13: 11/9 of the optimum.
        ([23] * 12 + [13] * 12 + [12] * 12 + [9] * 24, 44, 18, 22),
        # 20 + 15 + 3 * 12 is full; FFD puts like beside like: 71/60 of the optimum.
        ([20] * 60 + [15] * 60 + [12] * 180, 71, 60, 71),
    ],
)
def test_the_worst_lists_for_first_fit_decreasing(lengths, capacity, fewest, ffd):
    assert lp_bound(lengths, capacity) == fewest
    assert len(load_packer("ffd").pack(lengths, capacity)) == ffd


@given(instance=instances(most=9))
@settings(max_examples=200, deadline=None)
def test_lies_between_the_formulas_and_the_optimum(instance):
    lengths, capacity = instance
    optimum = fewest_bins(lengths, capacity)
    assert lower_bound(lengths, capacity) <= lp_bound(lengths, capacity) <= optimum


@given(
    capacity=st.integers(8, 30),
    lengths=st.lists(st.integers(3, 8), min_size=1, max_size=60),
)
@settings(max_examples=100, deadline=None)
def test_equals_the_program_over_all_patterns(lengths, capacity):
    exact = program_over_all_patterns(lengths, capacity)
    assert lp_bound(lengths, capacity) == math.ceil(exact - 1e-6)


@given(
    instance=instances(most=9),
    grid=st.none() | st.integers(1, 45),
    largest_alphabet=st.integers(1, 4),
    most_rounds=st.integers(1, 3),
)
@settings(max_examples=200, deadline=None)
def test_a_coarse_or_hurried_bound_is_a_bound(instance, grid, largest_alphabet, most_rounds):
    lengths, capacity = instance
    bound = lp_bound(
        lengths,
        capacity,
        grid=grid,
        largest_alphabet=largest_alphabet,
        most_rounds=most_rounds,
    )
    assert lower_bound(lengths, capacity) <= bound <= fewest_bins(lengths, capacity)


def test_no_prices_lift_the_bound_above_the_optimum(monkeypatch):
    # Whatever the solver answers: the bound is proved from the answer, not taken from it.
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths = rng.integers(1, 31, size=9).tolist()
        scale = 10.0 ** rng.integers(-3, 3)
        monkeypatch.setattr(
            scipy.optimize,
            "linprog",
            lambda c, scale=scale, **_: SimpleNamespace(x=scale * rng.normal(size=len(c))),
        )
        assert lower_bound(lengths, 30) <= lp_bound(lengths, 30) <= fewest_bins(lengths, 30)


def test_a_solver_without_an_answer_leaves_the_formulas(monkeypatch):
    monkeypatch.setattr(scipy.optimize, "linprog", lambda c, **_: SimpleNamespace(x=None))
    assert lp_bound([4] * 10, 10) == lower_bound([4] * 10, 10) == 4


def test_a_finer_grid_gives_a_better_bound():
    # At most three samples of more than a quarter share a bin, and few triples fill one.
    lengths = np.random.default_rng(0).integers(1024, 2049, size=10_000)
    coarse = lp_bound(lengths, 4096, largest_alphabet=50)
    fine = lp_bound(lengths, 4096, largest_alphabet=200)
    assert lower_bound(lengths, 4096) + 100 < coarse < fine
    assert fine <= len(load_packer("bfd").pack(lengths, 4096))


def test_nothing_but_the_lengths_counts():
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 1000, size=500).astype(np.int32)
    before = lengths.copy()
    bound = lp_bound(lengths, 1000, largest_alphabet=60)
    assert (lengths == before).all()
    assert lp_bound(rng.permutation(lengths).tolist(), 1000, largest_alphabet=60) == bound


@pytest.mark.parametrize(
    ("lengths", "capacity", "words"),
    [
        ([5, 11], 10, r"lengths\[1\] is 11, above the capacity of 10"),
        ([0], 10, r"lengths\[0\] is 0"),
        ([1], 0, "capacity must be at least 1"),
        ([1.5], 10, "flat sequence of integers"),
    ],
)
def test_what_cannot_be_packed_is_refused(lengths, capacity, words):
    with pytest.raises(ValueError, match=words):
        lp_bound(lengths, capacity)


@pytest.mark.parametrize("option", ["largest_alphabet", "grid", "most_rounds"])
def test_options_below_one_are_refused(option):
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        lp_bound([1], 10, **{option: 0})
