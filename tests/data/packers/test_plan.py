"""Plans: the bins of a packer as patterns with multiplicities, from the histogram alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packers import load_packer, packer_names
from data.packers._by_length import ByLength
from data.packers.bounds import histogram_lower_bound, lower_bound
from data.packers.items import Grouping

BY_LENGTH = [name for name in packer_names() if isinstance(load_packer(name), ByLength)]


def contents(bins, lengths):
    """What is in each bin: how many samples of each length."""
    counted = []
    for samples in bins:
        count = {}
        for i in samples:
            count[lengths[i]] = count.get(lengths[i], 0) + 1
        counted.append(count)
    return counted


def test_all_packers_but_those_that_keep_an_order_can_plan():
    assert set(packer_names()) - set(BY_LENGTH) == {"concatenative", "ffs"}


@pytest.mark.parametrize("name", BY_LENGTH)
@given(
    seed=st.integers(0, 2**32),
    capacity=st.integers(1, 200),
    n=st.integers(1, 400),
    limit=st.none() | st.integers(1, 6),
)
@settings(max_examples=100, deadline=None)
def test_a_plan_has_the_bins_of_the_packing(name, seed, capacity, n, limit):
    lengths = np.random.default_rng(seed).integers(1, capacity + 1, n)
    packer = load_packer(name, max_samples_per_bin=limit)
    bins = packer.pack(lengths, capacity)
    plan = packer.plan(lengths, capacity)
    expanded = [content for content, times in plan.patterns() for _ in range(times)]
    assert expanded == contents(bins, lengths.tolist())
    assert (plan.bins, plan.samples, plan.tokens) == (len(bins), n, lengths.sum())
    assert plan.fill == lengths.sum() / (len(bins) * capacity)


@pytest.mark.parametrize("name", BY_LENGTH)
@pytest.mark.parametrize("limit", [None, 3])
def test_both_ways_of_packing_give_the_same_bins(name, limit):
    # By the histogram and item by item; for tight, item by item is another method.
    if name == "tight":
        pytest.skip("tight has no second way to the same bins")
    rng = np.random.default_rng(0)
    for low, high in ((1, 4096), (1024, 2048), (1400, 4096), (60, 700)):
        lengths = rng.integers(low, high + 1, 3000)
        packer = load_packer(name, max_samples_per_bin=limit)
        items = Grouping(lengths, 4096, None, None, limit or 3000).items
        indices, offsets = packer._pack_items(items, 4096, limit or 3000)
        expected = packer.pack_csr(lengths, 4096)
        assert np.array_equal(indices, expected[0]) and np.array_equal(offsets, expected[1])


def test_a_pattern_worked_by_hand():
    plan = load_packer("ffd").plan([6] * 4 + [4] * 3 + [3] * 5, 10)
    # 6 + 4 three times, 6 + 3 once, 3 + 3 + 3 once, and a 3.
    assert list(plan.patterns()) == [
        ({6: 1, 4: 1}, 3),
        ({6: 1, 3: 1}, 1),
        ({3: 3}, 1),
        ({3: 1}, 1),
    ]
    assert plan.bins == 6 and plan.samples == 12 and plan.tokens == 51
    assert plan.fill == 51 / 60


def test_a_plan_of_billions():
    count = np.zeros(4097, np.int64)
    count[[600, 1500, 2500]] = 10**9, 3 * 10**8, 2 * 10**8
    plan = load_packer("ffd").plan_histogram(count)
    assert plan.samples == count.sum() and plan.tokens == (count * np.arange(4097)).sum()
    assert plan.bins >= histogram_lower_bound(count) == -(-plan.tokens // 4096)
    assert len(list(plan.patterns())) < 10


@pytest.mark.parametrize("name", BY_LENGTH)
def test_no_samples_need_no_bins(name):
    plan = load_packer(name).plan_histogram(np.zeros(11, np.int64))
    assert (plan.bins, plan.samples, plan.tokens, plan.fill) == (0, 0, 0, 1.0)
    assert list(plan.patterns()) == [] == list(load_packer(name).plan([], 10).patterns())


@given(
    capacity=st.integers(1, 300),
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=80),
)
@settings(max_examples=200, deadline=None)
def test_the_bound_of_a_histogram_is_that_of_its_lengths(capacity, lengths):
    lengths = [min(length, capacity) for length in lengths]
    count = np.bincount(lengths, minlength=capacity + 1)
    bound = histogram_lower_bound(count)
    assert bound == lower_bound(lengths, capacity)
    # And the other road, for capacities far above the number of lengths.
    assert bound == lower_bound([length * 10**6 for length in lengths], capacity * 10**6)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        ([0], "flat array of capacity"),
        ([1, 2], "of samples without a token, 0"),
        ([0, -1, 3], "none of them below 0"),
        ([[0, 1], [0, 1]], "flat array of capacity"),
        ([0, 2**31], "room for 2.*31 - 1 samples, got 2147483648"),
    ],
)
def test_what_is_no_histogram_is_refused(count, words):
    with pytest.raises(ValueError, match=words):
        load_packer("ffd").plan_histogram(np.array(count))


def test_a_capacity_beyond_tables_is_refused():
    with pytest.raises(ValueError, match="capacity must be at most 16777216 for a plan"):
        load_packer("ffd").plan([5], 2**24 + 1)
