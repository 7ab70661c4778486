"""The lower bound: never above the optimum, never below the tokens over the capacity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packers import load_packer, packer_names
from data.packers.bounds import lower_bound
from tests.data.packers.textbook import fewest_bins


def martello_toth(lengths, capacity):
    """L2 by its definition, at every threshold there is."""
    bounds = []
    for k in range(capacity // 2 + 1):
        one = [x for x in lengths if x > capacity - k]
        two = [x for x in lengths if capacity - k >= x and 2 * x > capacity]
        three = [x for x in lengths if 2 * x <= capacity and x >= k]
        over = sum(three) - (len(two) * capacity - sum(two))
        bounds.append(len(one) + len(two) + max(0, -(-over // capacity)))
    return max(bounds)


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
        ([5, 5], 10, 1),
        ([5, 5, 1], 10, 2),  # L1: 11 tokens
        ([6, 6, 6], 10, 3),  # L1 is 2, but no two 6s share a bin
        ([7, 7, 7, 4, 4, 4], 10, 5),  # L1 is 4, but the 4s fit beside no 7
        ([7, 7, 7, 3, 3, 3], 10, 3),  # here all bins can be full
        ([4, 4, 4], 11, 2),  # an odd capacity: 4 is below half, two share a bin
        ([6, 6], 11, 2),  # and 6 is above half
        (np.array([2**30 - 1] * 8, dtype=np.int32), 2**31 - 1, 4),  # sums beyond int32
    ],
)
def test_worked_by_hand(lengths, capacity, bins):
    assert lower_bound(lengths, capacity) == bins


@given(instance=instances(most=40))
@settings(max_examples=300, deadline=None)
def test_equals_the_definition(instance):
    lengths, capacity = instance
    bound = lower_bound(lengths, capacity)
    assert bound == martello_toth(lengths, capacity)
    assert bound >= -(-sum(lengths) // capacity)


@given(instance=instances(most=7))
@settings(max_examples=200, deadline=None)
def test_is_never_above_the_optimum(instance):
    lengths, capacity = instance
    optimum = fewest_bins(lengths, capacity)
    assert lower_bound(lengths, capacity) <= optimum
    for name in packer_names():
        assert len(load_packer(name).pack(lengths, capacity)) >= optimum


def test_the_brute_force_finds_what_first_fit_decreasing_misses():
    # 5 + 3 + 2 and 4 + 3 + 3 are two full bins; FFD starts with 5 + 4 and needs a third.
    lengths = [5, 4, 3, 3, 3, 2]
    assert fewest_bins(lengths, 10) == 2
    assert load_packer("ffd").pack(lengths, 10) == [[0, 1], [2, 3, 4], [5]]


def test_a_limit_on_samples_raises_the_bound():
    assert lower_bound([1] * 10, 100) == 1
    assert lower_bound([1] * 10, 100, max_samples_per_bin=3) == 4
    assert lower_bound([60, 60, 1], 100, max_samples_per_bin=3) == 2
    assert lower_bound([], 100, max_samples_per_bin=3) == 0


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
        lower_bound(lengths, capacity)
