"""Each packer against the textbook, on random lists and on those that are hard on packers."""

import doctest
from importlib import import_module

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.packers import load_packer, packer_names
from data.packers.bounds import lower_bound
from data.packers.ffs import _shuffled
from tests.data.packers.textbook import TEXTBOOK, Bins, shuffled


@st.composite
def instances(draw):
    """Lengths that like the borders of the size classes, and ties."""
    capacity = draw(st.integers(1, 60) | st.integers(10**5, 10**6))
    borders = {capacity // part + more for part in (1, 2, 3, 4, 6) for more in (-1, 0, 1)}
    border = st.sampled_from(sorted(x for x in borders if 1 <= x <= capacity))
    low = st.integers(1, max(1, capacity // 4))
    lengths = draw(st.lists(border | low | st.integers(1, capacity), min_size=1, max_size=30))
    return lengths, capacity, draw(st.none() | st.integers(1, 2) | st.integers(3, 5))


@pytest.mark.parametrize("name", TEXTBOOK)
@given(instance=instances())
@example(instance=([51, 27, 26, 23] * 6 + [23] * 6, 100, None))
@settings(max_examples=250, deadline=None)
def test_equals_the_textbook(name, instance):
    lengths, capacity, limit = instance
    expected = TEXTBOOK[name](Bins(lengths, capacity, limit or len(lengths)))
    packer = load_packer(name, max_samples_per_bin=limit)
    assert packer.pack(lengths, capacity) == expected


@given(instance=instances(), delta=st.integers(0, 6))
@settings(max_examples=150, deadline=None)
def test_balanced_with_delta_equals_the_textbook(instance, delta):
    lengths, capacity, limit = instance
    packing = Bins(lengths, capacity, limit or len(lengths))
    expected = TEXTBOOK["balanced_greedy_knapsack"](packing, delta)
    packer = load_packer("balanced_greedy_knapsack", delta=delta, max_samples_per_bin=limit)
    assert packer.pack(lengths, capacity) == expected


@given(instance=instances(), seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_shuffle_with_a_seed_equals_the_textbook(instance, seed):
    lengths, capacity, limit = instance
    expected = TEXTBOOK["ffs"](Bins(lengths, capacity, limit or len(lengths)), seed)
    packer = load_packer("ffs", seed=seed, max_samples_per_bin=limit)
    assert packer.pack(lengths, capacity) == expected


def _repeated(*counts):
    return [length for length, count in counts for _ in range(count)]


HARD = {
    "one": ([7], 9),
    "capacity 1": ([1] * 9, 1),
    "all equal": ([5] * 40, 17),
    "all equal, exact fits": ([5] * 40, 20),
    "exact fits": ([9, 1, 8, 2, 7, 3, 6, 4, 5, 5] * 4, 10),
    "an odd capacity": ([25, 24, 26, 17, 16, 9, 8, 51] * 5, 51),
    "one above a power of two": ([4097, 4096, 2049, 2048, 1366, 1365, 684, 683, 1] * 6, 4097),
    "one below it": ([4095, 2048, 2047, 1366, 1365, 683, 682, 1] * 6, 4095),
    "just above half": (np.random.default_rng(0).integers(2049, 2100, 300).tolist(), 4096),
    "just above a third": (np.random.default_rng(1).integers(1366, 1400, 300).tolist(), 4096),
    "11/9": (_repeated((23, 18), (13, 18), (12, 18), (9, 36)), 44),
    "11/9, wide": (_repeated((2004, 30), (1008, 30), (1004, 30), (992, 60)), 4000),
    "71/60": (_repeated((20, 60), (15, 60), (12, 180)), 71),
    "next fit's worst": ([50, 1] * 40, 100),
    "first fit's worst": (_repeated((7, 30), (15, 30), (34, 30), (51, 30)), 101),
    "medium and large only": ([60, 40, 35, 34, 51, 66] * 8, 100),
    "no large": ([34, 40, 17, 25, 8, 3] * 12, 100),
    "a wide capacity": ([65537, 65536, 40000, 30000, 25537, 9, 1] * 6, 65537),
    "sums beyond int32": ([2**30, 2**30 - 1, 2**29] * 12, 2**31 - 1),
}


@pytest.mark.parametrize("name", TEXTBOOK)
@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("limit", [None, 1, 2, 3, 7])
def test_hard_lists_equal_the_textbook(name, case, limit):
    lengths, capacity = HARD[case]
    expected = TEXTBOOK[name](Bins(lengths, capacity, limit or len(lengths)))
    assert load_packer(name, max_samples_per_bin=limit).pack(lengths, capacity) == expected


@pytest.mark.parametrize("name", TEXTBOOK)
@given(
    seed=st.integers(0, 2**32),
    capacity=st.integers(1, 300),
    n=st.integers(1, 300),
    low=st.floats(0, 1),
    high=st.floats(0, 1),
    limit=st.none() | st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_many_samples_of_few_lengths_equal_the_textbook(name, seed, capacity, n, low, high, limit):
    # Runs of equal bins, split and split again.
    bounds = sorted((1 + int(low * (capacity - 1)), 1 + int(high * (capacity - 1))))
    lengths = np.random.default_rng(seed).integers(bounds[0], bounds[1] + 1, n).tolist()
    expected = TEXTBOOK[name](Bins(lengths, capacity, limit or n))
    assert load_packer(name, max_samples_per_bin=limit).pack(lengths, capacity) == expected


@pytest.mark.parametrize("n", [1, 2, 65_536, 65_537, 200_000])
def test_the_shuffle_is_that_of_fisher_and_yates(n):
    assert _shuffled(n, seed=3).tolist() == shuffled(n, seed=3)
    assert _shuffled(n, seed=4).tolist() != shuffled(n, seed=3) or n < 3


def test_every_order_is_as_likely():
    counts = np.zeros((4, 4))
    for seed in range(4000):
        counts[np.arange(4), _shuffled(4, seed)] += 1
    assert abs(counts - 1000).max() < 150  # five standard deviations


@pytest.mark.parametrize("name", packer_names())
def test_the_example_in_the_docstring_is_right(name):
    failed, attempted = doctest.testmod(import_module(f"data.packers.{name}"))
    assert attempted >= 1 and failed == 0


WORKED = [
    ("concatenative", {}, [3, 3, 3, 5], 6, [[0, 1], [2], [3]]),
    ("concatenative", {"max_samples_per_bin": 2}, [1, 1, 1], 9, [[0, 1], [2]]),
    ("ffd", {}, [1, 3, 6, 8], 10, [[3, 0], [2, 1]]),
    ("bfd", {}, [1, 3, 6, 8], 10, [[3], [2, 1, 0]]),
    ("greedy_knapsack", {}, [1, 3, 6, 8], 10, [[3, 0], [2, 1]]),
    ("greedy_knapsack", {}, [6, 5, 4, 3, 2], 10, [[0, 2], [1, 3, 4]]),
    ("greedy_knapsack", {"max_samples_per_bin": 1}, [4, 3, 2], 8, [[0], [1], [2]]),
    ("balanced_greedy_knapsack", {}, [4, 4, 4, 4], 8, [[0, 2], [1, 3]]),
    ("balanced_greedy_knapsack", {"max_samples_per_bin": 1}, [4, 3, 2], 9, [[0], [1], [2]]),
    # Bin 0 (6) is full by count; the emptiest bin that still accepts, bin 1 (5), gets the last.
    ("balanced_greedy_knapsack", {"max_samples_per_bin": 2}, [4, 3, 2, 1], 10, [[0, 1], [2, 3]]),
    # The 7 takes the 5 (phase 2); the 8 takes the 4 (phase 4); the rest goes into a new bin.
    ("mffd", {}, [7, 8, 4, 3, 5, 2], 12, [[1, 2], [0, 4], [3, 5]]),
    # Backward: the 51 takes the pair of 24 and, of the 25s, the first; the 52 gets what is left.
    ("mffd", {}, [52, 51, 25, 24, 25], 100, [[0, 4], [1, 3, 2]]),
    # Only the last phase: first-fit puts the 1 into bin 0, worst-fit would put it into bin 1.
    ("mffd", {}, [6, 5, 4, 3, 1], 12, [[0, 1, 4], [2, 3]]),
    # A pair does not fit by count, one more sample does.
    ("mffd", {"max_samples_per_bin": 2}, [51, 26, 23], 100, [[0, 1], [2]]),
]


@pytest.mark.parametrize(("name", "options", "lengths", "capacity", "bins"), WORKED)
def test_worked_by_hand(name, options, lengths, capacity, bins):
    assert load_packer(name, **options).pack(lengths, capacity) == bins


@pytest.mark.parametrize(
    ("name", "bins"),
    [
        ("ffd", [[1, 0], [5, 3], [2, 4]]),
        ("bfd", [[1, 0], [5, 3], [2, 4]]),
        ("greedy_knapsack", [[1, 0], [5, 3], [2, 4]]),
        ("mffd", [[1, 0], [5, 3], [2, 4]]),
        # Three bins: 6, 6 and 4; the other 4 makes the last one 8, the 3s go beside the 6s.
        ("balanced_greedy_knapsack", [[1, 2], [5, 4], [0, 3]]),
    ],
)
def test_of_equal_lengths_the_lower_index_goes_first(name, bins):
    assert load_packer(name).pack([4, 6, 3, 4, 3, 6], 10) == bins


@given(instance=instances())
@settings(max_examples=100, deadline=None)
def test_greedy_knapsack_makes_the_bins_of_ffd(instance):
    lengths, capacity, limit = instance
    ffd, greedy = (
        load_packer(name, max_samples_per_bin=limit).pack(lengths, capacity)
        for name in ("ffd", "greedy_knapsack")
    )
    assert greedy == ffd


@pytest.mark.parametrize("m", [1, 2, 50])
def test_where_ffd_is_at_its_worst_mffd_is_not(m):
    # The optimum: 6m bins of 51 + 26 + 23 and 3m of 27 + 27 + 23 + 23, all full. FFD takes 6m of
    # 51 + 27, 2m of three 26 and 3m of four 23. MFFD takes 6m of 51 + 23 + 26, then 2m of three 27
    # and 1.5m of four 23, rounded up.
    lengths = [51] * 6 * m + [27] * 6 * m + [26] * 6 * m + [23] * 12 * m
    assert lower_bound(lengths, 100) == 9 * m
    assert len(load_packer("ffd").pack(lengths, 100)) == 11 * m
    assert len(load_packer("mffd").pack(lengths, 100)) == 8 * m + (3 * m + 1) // 2


@st.composite
def full_bins(draw):
    """Samples that fill ``fewest`` bins to the brim, shuffled; so that is the optimum."""
    capacity = draw(st.integers(2, 120))
    cuts = st.lists(st.integers(1, capacity - 1), max_size=5, unique=True)
    bins = draw(st.lists(cuts, min_size=1, max_size=12))
    lengths = [int(x) for at in bins for x in np.diff([0, *sorted(at), capacity])]
    return draw(st.permutations(lengths)), capacity, len(bins)


@given(instance=full_bins(), delta=st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_the_guarantees_hold(instance, delta):
    lengths, capacity, fewest = instance
    most = {
        "concatenative": 2 * fewest - 1,
        "ffs": 17 * fewest // 10,
        "ffd": (11 * fewest + 6) // 9,
        "greedy_knapsack": (11 * fewest + 6) // 9,
        "bfd": (11 * fewest + 36) // 9,
        "mffd": (71 * fewest + 60) // 60,
    }
    for name, bound in most.items():
        assert fewest <= len(load_packer(name).pack(lengths, capacity)) <= bound, name
    balanced = load_packer("balanced_greedy_knapsack", delta=delta).pack(lengths, capacity)
    assert fewest <= len(balanced) <= max(fewest + delta, 2 * fewest)


@pytest.mark.parametrize(
    ("delta", "bins"),
    [
        (0, [[0, 2], [1, 3]]),
        (1, [[0, 3], [1], [2]]),
        (2, [[0], [1], [2], [3]]),
        (5, [[0], [1], [2], [3]]),
    ],
)
def test_delta_spreads_the_samples_and_leaves_no_bin_empty(delta, bins):
    packer = load_packer("balanced_greedy_knapsack", delta=delta)
    assert packer.pack([4, 4, 4, 4], 8) == bins
