"""Each packer against the textbook, written out as plainly as possible: scans, no structures."""

import doctest
from importlib import import_module

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.packers import load_packer, packer_names
from data.packers.bounds import lower_bound


class Bins:
    """Bins that are measured anew whenever they are asked."""

    def __init__(self, lengths, capacity, limit):
        self.lengths, self.capacity, self.limit, self.bins = lengths, capacity, limit, []

    def room(self, samples):
        return self.capacity - sum(self.lengths[i] for i in samples)

    def fits(self, index, samples):
        return self.lengths[index] <= self.room(samples) and len(samples) < self.limit

    def place(self, index, candidates):
        """Into the first of the candidates, or a new bin if there are none."""
        if not candidates:
            candidates = [[]]
            self.bins.append(candidates[0])
        candidates[0].append(index)

    def first_fit(self, order):
        for i in order:
            self.place(i, [b for b in self.bins if self.fits(i, b)])
        return self.bins


def descending(lengths):
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def next_fit(lengths, capacity, limit):
    packing = Bins(lengths, capacity, limit)
    for i in range(len(lengths)):
        packing.place(i, [b for b in packing.bins[-1:] if packing.fits(i, b)])
    return packing.bins


def first_fit_decreasing(lengths, capacity, limit):
    return Bins(lengths, capacity, limit).first_fit(descending(lengths))


def first_fit_shuffle(lengths, capacity, limit, seed=0):
    order = np.random.default_rng(seed).permutation(len(lengths))
    return Bins(lengths, capacity, limit).first_fit(order.tolist())


def best_fit_decreasing(lengths, capacity, limit):
    packing = Bins(lengths, capacity, limit)
    for i in descending(lengths):
        fitting = [b for b in packing.bins if packing.fits(i, b)]
        packing.place(i, sorted(fitting, key=packing.room))  # stable: first opened on a tie
    return packing.bins


def greedy_knapsack(lengths, capacity, limit):
    packing, left = Bins(lengths, capacity, limit), descending(lengths)
    while left:
        packing.bins.append([])
        while fitting := [i for i in left if packing.fits(i, packing.bins[-1])]:
            packing.bins[-1].append(fitting[0])
            left.remove(fitting[0])
    return packing.bins


def balanced_greedy_knapsack(lengths, capacity, limit, delta=0):
    packing, left = Bins(lengths, capacity, limit), descending(lengths)
    packing.bins = [[] for _ in range(-(-sum(lengths) // capacity) + delta)]
    current = packing.bins[0]
    while left:
        if packing.fits(left[0], current):
            current.append(left.pop(0))
        else:
            packing.bins.append([])
        accepting = [b for b in packing.bins if len(b) < limit] or [current]
        current = max(accepting, key=packing.room)  # the first of the emptiest
    return [b for b in packing.bins if b]


def modified_first_fit_decreasing(lengths, capacity, limit):
    packing = Bins(lengths, capacity, limit)
    classes = {"large": [], "medium": [], "small": [], "tiny": []}
    for i in descending(lengths):
        parts = [2, 3, 6]
        names = [n for n, p in zip(classes, parts, strict=False) if p * lengths[i] > capacity]
        classes[names[0] if names else "tiny"].append(i)
    packing.bins = [[i] for i in classes["large"]]
    for b in packing.bins:
        fitting = [i for i in classes["medium"] if packing.fits(i, b)]
        if fitting:
            b.append(fitting[0])
            classes["medium"].remove(fitting[0])
    for b in [b for b in reversed(packing.bins) if len(b) == 1]:
        ascending = sorted(classes["small"], key=lambda i: (lengths[i], i))
        two = sum(lengths[i] for i in ascending[:2])
        if len(ascending) < 2 or two > packing.room(b) or limit < 3:
            continue
        b.append(ascending[0])
        classes["small"].remove(ascending[0])
        partner = next(i for i in classes["small"] if packing.fits(i, b))
        b.append(partner)
        classes["small"].remove(partner)
    left = [i for name in ("medium", "small", "tiny") for i in classes[name]]
    for b in packing.bins:
        while fitting := [i for i in left if packing.fits(i, b)]:
            b.append(fitting[0])
            left.remove(fitting[0])
    return packing.first_fit(left)


TEXTBOOK = {
    "concatenative": next_fit,
    "ffd": first_fit_decreasing,
    "ffs": first_fit_shuffle,
    "bfd": best_fit_decreasing,
    "mffd": modified_first_fit_decreasing,
    "greedy_knapsack": greedy_knapsack,
    "balanced_greedy_knapsack": balanced_greedy_knapsack,
}


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
    expected = TEXTBOOK[name](lengths, capacity, limit or len(lengths))
    packer = load_packer(name, max_samples_per_bin=limit)
    assert packer.pack(lengths, capacity) == expected


@given(instance=instances(), delta=st.integers(0, 6))
@settings(max_examples=150, deadline=None)
def test_balanced_with_delta_equals_the_textbook(instance, delta):
    lengths, capacity, limit = instance
    expected = balanced_greedy_knapsack(lengths, capacity, limit or len(lengths), delta)
    packer = load_packer("balanced_greedy_knapsack", delta=delta, max_samples_per_bin=limit)
    assert packer.pack(lengths, capacity) == expected


@given(instance=instances(), seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_shuffle_with_a_seed_equals_the_textbook(instance, seed):
    lengths, capacity, limit = instance
    expected = first_fit_shuffle(lengths, capacity, limit or len(lengths), seed)
    packer = load_packer("ffs", seed=seed, max_samples_per_bin=limit)
    assert packer.pack(lengths, capacity) == expected


@pytest.mark.parametrize("name", TEXTBOOK)
def test_lengths_just_above_half_equal_the_textbook(name):
    lengths = np.random.default_rng(0).integers(2049, 2100, 400).tolist()
    assert load_packer(name).pack(lengths, 4096) == TEXTBOOK[name](lengths, 4096, 400)


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
