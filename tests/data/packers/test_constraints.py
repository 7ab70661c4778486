"""Samples that must share a bin, samples that must not, and how many bins there are to be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packers import load_packer, packer_names
from data.packers.base import ConstraintError, Packer
from data.packers.cutting_stock import lp_bound
from tests.data.packers.textbook import TEXTBOOK, Bins

EVERY = pytest.mark.parametrize("name", packer_names())


@st.composite
def instances(draw):
    """Lengths with groups that fit, and numbers that contradict no group."""
    capacity = draw(st.integers(2, 40) | st.integers(10**5, 10**6))
    limit = draw(st.none() | st.integers(1, 6))
    n = draw(st.integers(1, 24))
    together, apart = [-1] * n, [-1] * n
    lengths = draw(st.lists(st.integers(1, capacity), min_size=n, max_size=n))
    if draw(st.booleans()):
        together = draw(st.lists(st.integers(-1, 6), min_size=n, max_size=n))
    if draw(st.booleans()):
        apart = draw(st.lists(st.integers(-1, 5), min_size=n, max_size=n))
    tokens, members, numbers = {}, {}, {}
    for i, group in enumerate(together):
        if group < 0:
            continue
        tokens[group] = tokens.get(group, 0) + lengths[i]
        members[group] = members.get(group, 0) + 1
        clash = apart[i] >= 0 and apart[i] in numbers.get(group, set())
        if tokens[group] > capacity or members[group] > (limit or n) or clash:
            tokens[group] -= lengths[i]
            members[group] -= 1
            together[i] = -1
        elif apart[i] >= 0:
            numbers.setdefault(group, set()).add(apart[i])
    return lengths, capacity, limit, together, apart


def grouped(lengths, together, apart):
    """Items as lists of samples, in the order of their first ones, and their numbers."""
    items, of_group = [], {}
    for i, group in enumerate(together):
        if group >= 0 and group in of_group:
            of_group[group].append(i)
        else:
            items.append([i])
            if group >= 0:
                of_group[group] = items[-1]
    numbers = [{apart[i] for i in item if apart[i] >= 0} for item in items]
    return items, numbers


@pytest.mark.parametrize("name", TEXTBOOK)
@given(instance=instances())
@settings(max_examples=250, deadline=None)
def test_constrained_packings_equal_the_textbook(name, instance):
    lengths, capacity, limit, together, apart = instance
    items, numbers = grouped(lengths, together, apart)
    packing = Bins(
        [sum(lengths[i] for i in item) for item in items],
        capacity,
        limit or len(lengths),
        [len(item) for item in items],
        numbers,
    )
    expected = [[i for item in b for i in items[item]] for b in TEXTBOOK[name](packing)]
    packer = load_packer(name, max_samples_per_bin=limit)
    assert packer.pack(lengths, capacity, together=together, apart=apart) == expected


@EVERY
@given(instance=instances(), min_bins=st.integers(1, 9), multiple=st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_every_constraint_is_kept_or_cannot_be(name, instance, min_bins, multiple):
    lengths, capacity, limit, together, apart = instance
    packer = load_packer(name, max_samples_per_bin=limit, min_bins=min_bins, bins_multiple=multiple)
    free = load_packer(name, max_samples_per_bin=limit).pack(
        lengths, capacity, together=together, apart=apart
    )
    wanted = -(-max(len(free), min_bins) // multiple) * multiple
    items, _ = grouped(lengths, together, apart)
    if wanted > len(items):
        with pytest.raises(ConstraintError, match=f"{len(items)} .* fill the {wanted} bins"):
            packer.pack(lengths, capacity, together=together, apart=apart)
        return
    bins = packer.pack(lengths, capacity, together=together, apart=apart)
    assert len(bins) == wanted
    assert sorted(i for b in bins for i in b) == list(range(len(lengths)))
    # Bins are cut, never mixed: one after the other they are those made without it.
    assert [i for b in bins for i in b] == [i for b in free for i in b]
    bin_of = {i: number for number, b in enumerate(bins) for i in b}
    for item in items:
        assert len({bin_of[i] for i in item}) == 1
    for b in bins:
        assert 1 <= len(b) <= (limit or len(lengths))
        assert sum(lengths[i] for i in b) <= capacity
        numbers = [apart[i] for i in b if apart[i] >= 0]
        assert len(numbers) == len(set(numbers))


@EVERY
def test_answers_to_one_prompt_stay_apart(name):
    # Four prompts with four answers each: no bin has two of a prompt, so there are four at least.
    bins = load_packer(name).pack([10] * 16, 1000, apart=[i // 4 for i in range(16)])
    assert all(len({i // 4 for i in b}) == len(b) for b in bins)
    assert len(bins) >= 4


@EVERY
def test_parts_of_a_conversation_stay_together(name):
    bins = load_packer(name).pack([30, 60, 50, 40, 20], 100, together=[7, -1, 0, 7, 0])
    assert any({0, 3} <= set(b) for b in bins) and any({2, 4} <= set(b) for b in bins)


@EVERY
def test_bins_for_eight_ranks(name):
    lengths = np.random.default_rng(0).integers(1, 4097, 1000)
    plain = load_packer(name).pack(lengths, 4096)
    bins = load_packer(name, bins_multiple=8).pack(lengths, 4096)
    assert len(bins) % 8 == 0 and len(plain) <= len(bins) < len(plain) + 8
    assert sorted(i for b in bins for i in b) == list(range(1000))


@EVERY
def test_fewer_bins_than_ranks_are_spread(name):
    # All five would share a bin; four ranks get one bin each, and no sample is copied.
    bins = load_packer(name, bins_multiple=4).pack([2] * 5, 100)
    assert len(bins) == 4 and sorted(i for b in bins for i in b) == list(range(5))


def test_the_bin_with_the_most_tokens_is_cut_where_it_has_half():
    packer = load_packer("ffd", min_bins=3)
    # FFD: 50 + 40 and 35 + 30 + 20. The first has more.
    assert packer.pack([50, 40, 35, 30, 20], 100) == [[0], [1], [2, 3, 4]]
    packer = load_packer("ffd", min_bins=4)
    assert packer.pack([50, 40, 35, 30, 20], 100) == [[0], [1], [2], [3, 4]]
    packer = load_packer("concatenative", min_bins=4)
    assert packer.pack([1, 1, 1, 1, 1, 1], 9) == [[0, 1], [2], [3, 4], [5]]


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        ({"min_bins": 4}, {}, "3 samples cannot fill the 4 bins that min_bins=4 would need"),
        (
            {"bins_multiple": 8},
            {},
            "3 samples cannot fill the 8 bins that bins_multiple=8 would need",
        ),
        (
            {"min_bins": 3},
            {"together": [0, 0, -1]},
            "2 groups of samples cannot fill the 3 bins that min_bins=3",
        ),
        (
            {},
            {"together": [5, 5, 5]},
            "`together` is 5 must share a bin, and have 12 tokens, above",
        ),
        (
            {"max_samples_per_bin": 1},
            {"together": [-1, 2, 2]},
            "`together` is 2 must share a bin, and have 2 samples, above max_samples_per_bin = 1",
        ),
        (
            {},
            {"together": [3, -1, 3], "apart": [9, 9, 9]},
            "samples 0 and 2 have the same number in `together` and the same number, 9, in `apart`",
        ),
    ],
)
@EVERY
def test_what_cannot_be_met_is_said(name, options, arguments, words):
    with pytest.raises(ConstraintError) as raised:
        load_packer(name, **options).pack([4, 4, 4], 10, **arguments)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"together": [0, 0]}, "together must have one number per sample, 3; it has 2"),
        ({"apart": [0]}, "apart must have one number per sample, 3; it has 1"),
        ({"apart": [0, -2, 0]}, r"apart\[1\] is -2: must be 0 or more, or -1 for none"),
        ({"together": [0.5, 1, 1]}, "together must be a flat sequence of integers, got float64"),
    ],
)
def test_numbers_that_are_none_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        load_packer("ffd").pack([4, 4, 4], 10, **arguments)


@pytest.mark.parametrize("option", ["max_samples_per_bin", "min_bins", "bins_multiple"])
def test_limits_below_one_are_refused(option):
    with pytest.raises(ValueError, match=f"{option} must be at least 1 or null, got 0"):
        load_packer("ffd", **{option: 0})


@given(instance=instances())
@settings(max_examples=150, deadline=None)
def test_a_packer_in_plain_python_can_keep_all_constraints(instance):
    class NextFit(Packer):
        def _pack(self, items, capacity):
            bins = []
            for i in range(items.lengths.size):
                most_samples = self._most_samples(items.samples)
                if not bins or not items.fit(i, bins[-1], capacity, most_samples):
                    bins.append([])
                bins[-1].append(i)
            return bins

    lengths, capacity, limit, together, apart = instance
    plain, compiled = (
        packer.pack(lengths, capacity, together=together, apart=apart)
        for packer in (
            NextFit(max_samples_per_bin=limit),
            load_packer("concatenative", max_samples_per_bin=limit),
        )
    )
    assert plain == compiled


def test_a_packer_that_cannot_keep_samples_apart_says_so():
    class AllInOne(Packer):
        def _pack(self, items, capacity):
            return [list(range(items.lengths.size))]

    assert AllInOne().pack([1, 2, 3], 9, apart=[0, 1, -1]) == [[0, 1, 2]]
    with pytest.raises(ConstraintError, match="AllInOne cannot keep samples apart"):
        AllInOne().pack([1, 2, 3], 9, apart=[0, 1, 0])


@pytest.mark.parametrize("name", ["ffd", "bfd", "mffd", "balanced_greedy_knapsack", "ffs"])
def test_many_samples_with_constraints(name):
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 1025, 20_000)
    apart = rng.integers(-1, 5000, 20_000)
    together = np.where(rng.random(20_000) < 0.2, rng.integers(0, 10**7, 20_000), -1)
    indices, offsets = load_packer(name, max_samples_per_bin=40).pack_csr(
        lengths, 4096, together=together, apart=apart
    )
    assert np.array_equal(np.sort(indices), np.arange(20_000))
    bin_of = np.empty(20_000, np.int64)
    bin_of[indices] = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    assert np.bincount(bin_of, lengths).max() <= 4096 and np.diff(offsets).max() <= 40
    tagged = apart >= 0
    pairs = np.stack([apart[tagged], bin_of[tagged]])
    assert np.unique(pairs, axis=1).shape == pairs.shape
    for group in np.unique(together[together >= 0]):
        assert np.unique(bin_of[together == group]).size == 1
    assert offsets.size - 1 < 1.03 * lp_bound(lengths, 4096)
