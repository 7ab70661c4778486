"""The contract every packer keeps, what packers refuse, and how they are found."""

import random
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

import data.packers
from data.packers import ALIASES, Packer, load_packer, packer_names

ROOT = Path(__file__).parents[3]
EVERY = pytest.mark.parametrize("name", packer_names())


def test_the_packers_of_this_project_are_there():
    assert set(packer_names()) >= {
        "balanced_greedy_knapsack",
        "bfd",
        "concatenative",
        "ffd",
        "ffs",
        "greedy_knapsack",
        "mffd",
        "tight",
    }
    assert packer_names() == sorted(packer_names())
    assert not {"base", "bounds", "cutting_stock", "items", "plan"} & set(packer_names())


@st.composite
def instances(draw):
    capacity = draw(st.integers(1, 50) | st.integers(1, 10**9))
    lengths = draw(st.lists(st.integers(1, capacity), max_size=60))
    return lengths, capacity, draw(st.none() | st.integers(1, 6))


@EVERY
@given(instance=instances())
@settings(max_examples=150, deadline=None)
def test_contract(name, instance):
    lengths, capacity, limit = instance
    packer = load_packer(name, max_samples_per_bin=limit)
    given_lengths = np.array(lengths, dtype=np.int32)
    bins = packer.pack(given_lengths, capacity)
    assert sorted(i for samples in bins for i in samples) == list(range(len(lengths)))
    for samples in bins:
        assert 1 <= len(samples) <= (limit or len(lengths))
        assert sum(lengths[i] for i in samples) <= capacity
        assert all(type(i) is int for i in samples)
    assert given_lengths.tolist() == lengths
    assert packer.pack(lengths, capacity) == bins

    indices, offsets = packer.pack_csr(lengths, capacity)
    assert (indices.dtype, offsets.dtype) == (np.int32, np.int64)
    assert (indices.size, offsets.size, offsets[0]) == (len(lengths), len(bins) + 1, 0)
    assert [indices[a:b].tolist() for a, b in pairwise(offsets)] == bins


@EVERY
def test_no_lengths_make_no_bins(name):
    packer = load_packer(name)
    assert packer.pack([], 10) == []
    assert packer.pack(np.array([], dtype=np.int64), 10) == []
    indices, offsets = packer.pack_csr([], 10)
    assert (indices.tolist(), offsets.tolist()) == ([], [0])


@EVERY
def test_two_samples_that_fill_a_bin_share_it(name):
    (samples,) = load_packer(name).pack([6, 4], 10)
    assert sorted(samples) == [0, 1]


@EVERY
def test_a_bin_with_the_most_samples_is_full(name):
    bins = load_packer(name, max_samples_per_bin=2).pack([1] * 6, 100)
    assert [len(samples) for samples in bins] == [2, 2, 2]


@EVERY
@pytest.mark.parametrize("lengths", [[4, 3, 2], [6, 4], [6, 2, 2], [6, 4, 1, 1]])
def test_a_bin_for_each_sample_when_one_is_the_most(name, lengths):
    bins = load_packer(name, max_samples_per_bin=1).pack(lengths, 10)
    assert sorted(bins) == [[i] for i in range(len(lengths))]


@EVERY
def test_many_lengths_above_half_each_get_a_bin(name):
    lengths = np.random.default_rng(0).integers(2049, 2100, 20_000)
    bins = load_packer(name).pack(lengths, 4096)
    assert sorted(bins) == [[i] for i in range(20_000)]


@EVERY
def test_many_lengths_of_many_sizes_keep_the_contract(name):
    lengths = np.random.default_rng(1).integers(1, 100_001, 20_000)
    indices, offsets = load_packer(name).pack_csr(lengths, 100_000)
    assert np.array_equal(np.sort(indices), np.arange(20_000))
    tokens = np.add.reduceat(lengths[indices], offsets[:-1])
    assert tokens.max() <= 100_000 and np.diff(offsets).min() >= 1


@EVERY
@pytest.mark.parametrize(
    ("lengths", "capacity", "words"),
    [
        ([40, 32, 5], 40, None),
        ([5, 32], 30, [r"lengths\[1\] is 32", "capacity of 30", r"data\.overlong"]),
        ([5, 0], 30, [r"lengths\[1\] is 0", "capacity of 30", "at least 1 token"]),
        ([5, 5, -2], 30, [r"lengths\[2\] is -2", "capacity of 30"]),
        ([5], 0, ["capacity must be at least 1 token, got 0"]),
        ([], -1, ["capacity must be at least 1 token, got -1"]),
        ([5], 2**31, ["capacity must be at most 2147483647 tokens", "got 2147483648"]),
        ([[1, 2], [3, 4]], 30, ["flat sequence of integers", r"\(2, 2\)"]),
        ([1.0, 2.0], 30, ["flat sequence of integers", "float64"]),
        ([True, True], 30, ["flat sequence of integers", "bool"]),
        (np.array([2**63 + 5], dtype=np.uint64), 30, [r"lengths\[0\] is 9223372036854775813"]),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(name, lengths, capacity, words):
    packer = load_packer(name)
    if words is None:  # exactly the capacity is not too long
        assert sum(map(len, packer.pack(lengths, capacity))) == len(lengths)
        return
    with pytest.raises(ValueError) as raised:
        packer.pack(lengths, capacity)
    for word in words:
        assert re.search(word, str(raised.value))


@EVERY
def test_fewer_than_one_sample_per_bin_is_refused(name):
    with pytest.raises(ValueError, match="max_samples_per_bin must be at least 1 or null, got 0"):
        load_packer(name, max_samples_per_bin=0)


def test_options_out_of_range_are_refused():
    with pytest.raises(ValueError, match="delta must be 0 or more, got -1"):
        load_packer("balanced_greedy_knapsack", delta=-1)
    with pytest.raises(ValueError, match="seed must be 0 or more, got -3"):
        load_packer("ffs", seed=-3)


@EVERY
def test_a_packer_cannot_be_changed(name):
    with pytest.raises(AttributeError):
        load_packer(name).max_samples_per_bin = 3


def test_the_seed_decides_the_shuffle_and_nothing_else_moves():
    lengths = list(range(1, 31))
    before = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    zero, one = (load_packer("ffs", seed=seed).pack(lengths, 31) for seed in (0, 1))
    after = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    assert zero != one
    assert before == after
    np.random.seed(7)
    assert load_packer("ffs").pack(lengths, 31) == zero


def test_names_in_any_case_and_those_of_other_tools_are_understood():
    assert load_packer("MFFD") == load_packer("mffd")
    expected = {
        "first_fit_decreasing": "ffd",
        "first_fit_shuffle": "ffs",
        "modified_first_fit_decreasing": "mffd",
        "best_fit_decreasing": "bfd",
        "next_fit": "concatenative",
    }
    assert expected.items() <= ALIASES.items()
    for alias, name in expected.items():
        assert type(load_packer(alias.upper())) is type(load_packer(name))


@pytest.mark.parametrize("name", ["lpt", "base", "bounds", "_first_fit", ""])
def test_an_unknown_name_is_answered_with_the_known_ones(name):
    with pytest.raises(ValueError, match=f"no packer '{name}'") as raised:
        load_packer(name)
    for known in [*packer_names(), *ALIASES]:
        assert known in str(raised.value)


def test_an_unknown_option_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'ffs' has no option 'delta'.*bins_multiple, seed"):
        load_packer("ffs", delta=5)


def test_a_new_packer_needs_its_file_only(tmp_path, monkeypatch):
    (tmp_path / "alone.py").write_text(
        "from data.packers.base import Packer\n"
        "from data.packers.ffd import FirstFitDecreasing  # imported, so not this module's packer\n"
        "class Alone(Packer):\n"
        "    def _pack(self, items, capacity):\n"
        "        return [[i] for i in range(items.lengths.size)]\n"
    )
    monkeypatch.setattr(data.packers, "__path__", [*data.packers.__path__, str(tmp_path)])
    monkeypatch.delattr(data.packers, "alone", raising=False)
    assert "alone" in packer_names()
    packer = load_packer("alone")
    sys.modules.pop("data.packers.alone")
    assert isinstance(packer, Packer)
    assert packer.pack([1, 2], 9) == [[0], [1]]


def test_only_the_packer_asked_for_is_imported():
    code = (
        "import sys; from data.packers import load_packer, packer_names; load_packer('ffd');"
        "print(*(n for n in packer_names() if 'data.packers.' + n in sys.modules), end=' ');"
        "print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert run.stdout.decode().split() == ["ffd", "False"]


def test_every_packer_has_its_file_of_options():
    assert sorted(path.stem for path in (ROOT / "conf/packer").glob("*.yaml")) == packer_names()


@EVERY
def test_the_file_of_options_explains_all_options_of_the_packer(name):
    path = ROOT / "conf/packer" / f"{name}.yaml"
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ")
    options = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    packer = load_packer(name)
    target = options.pop("_target_")
    assert target == f"{type(packer).__module__}.{type(packer).__name__}"
    assert list(options) == list(vars(packer))
    for option in options:
        (line,) = [line for line in lines if line.startswith(f"{option}:")]
        assert "  # " in line
