"""Tight: never worse than first-fit decreasing, and near the optimum where that is far from it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packers import load_packer
from data.packers.bounds import lower_bound
from data.packers.cutting_stock import lp_bound


def bins(name, lengths, capacity, **options):
    return load_packer(name, **options).pack_csr(lengths, capacity)[1].size - 1


@given(
    seed=st.integers(0, 2**32),
    capacity=st.integers(1, 3000),
    n=st.integers(1, 200),
    low=st.floats(0, 1),
    high=st.floats(0, 1),
    limit=st.none() | st.integers(1, 5),
)
@settings(max_examples=200, deadline=None)
def test_never_worse_than_first_fit_decreasing(seed, capacity, n, low, high, limit):
    first, last = sorted((1 + int(low * (capacity - 1)), 1 + int(high * (capacity - 1))))
    lengths = np.random.default_rng(seed).integers(first, last + 1, n)
    indices, offsets = load_packer("tight", max_samples_per_bin=limit).pack_csr(lengths, capacity)
    assert np.array_equal(np.sort(indices), np.arange(n))
    assert np.add.reduceat(lengths[indices], offsets[:-1]).max() <= capacity
    assert 1 <= np.diff(offsets).min() and np.diff(offsets).max() <= (limit or n)
    ffd = bins("ffd", lengths, capacity, max_samples_per_bin=limit)
    assert lower_bound(lengths, capacity) <= offsets.size - 1 <= ffd


def _repeated(*counts):
    return np.array([length for length, count in counts for _ in range(count)])


@pytest.mark.parametrize(
    ("lengths", "capacity", "optimum"),
    [
        (_repeated((51, 300), (27, 300), (26, 300), (23, 600)), 100, 450),
        (_repeated((23, 300), (13, 300), (12, 300), (9, 600)), 44, 450),
        (_repeated((20, 300), (15, 300), (12, 900)), 71, 300),
        (np.array([5, 4, 3, 3, 3, 2]), 10, 2),
    ],
)
def test_the_worst_lists_for_first_fit_decreasing_are_packed_at_best(lengths, capacity, optimum):
    assert bins("ffd", lengths, capacity) > optimum
    assert bins("tight", lengths, capacity) == optimum


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_mid_length_data_come_near_the_linear_bound(seed):
    rng = np.random.default_rng(seed)
    triplets = rng.integers(1025, 2048, 10_000)
    code = np.clip(np.rint(rng.normal(1500, 350, 5000)), 1, 4096).astype(np.int64)
    for lengths, above in ((triplets, 1.01), (code, 1.015)):
        bound = lp_bound(lengths, 4096)
        assert bins("tight", lengths, 4096) <= above * bound
        assert bins("ffd", lengths, 4096) > 1.025 * bound


def test_a_limit_on_samples_is_kept_where_patterns_would_break_it():
    lengths = np.random.default_rng(0).integers(300, 700, 3000)
    indices, offsets = load_packer("tight", max_samples_per_bin=5).pack_csr(lengths, 4096)
    assert np.diff(offsets).max() == 5 and indices.size == 3000
    assert offsets.size - 1 == 600  # five in each


@pytest.mark.parametrize("n", [10_000, 100_000])
def test_on_chats_nothing_is_left_to_gain(n):
    lengths = np.clip(np.exp(np.random.default_rng(0).normal(6.2, 1.0, n)), 1, 4096).astype(int)
    bound = lower_bound(lengths, 4096)
    for name in ("ffd", "bfd", "mffd", "tight"):
        assert bins(name, lengths, 4096) <= bound + 1


def test_samples_apart_leave_the_best_of_the_others():
    rng = np.random.default_rng(3)
    lengths, apart = rng.integers(1, 101, 300), rng.integers(0, 40, 300)
    counts = {
        name: len(load_packer(name).pack(lengths, 100, apart=apart))
        for name in ("ffd", "bfd", "mffd", "tight")
    }
    assert counts["tight"] == min(counts.values())


def test_equal_calls_give_equal_bins():
    lengths = np.random.default_rng(0).integers(1025, 2048, 2000)
    packer = load_packer("tight")
    first, second = packer.pack(lengths, 4096), packer.pack(lengths.tolist(), 4096)
    assert first == second
