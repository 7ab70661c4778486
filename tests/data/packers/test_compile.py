"""Machine code on disk: found again, never stale, and no condition for packing."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packers import _compile
from data.packers._bits import add, at_least, at_most, empty_set, remove
from data.packers._compile import leading_zeros, trailing_zeros

ROOT = Path(__file__).parents[3]
PACK = (
    "import warnings; warnings.simplefilter('always');"
    "from data.packers import load_packer; print(load_packer('ffd').pack([1, 3, 6, 8], 10))"
)


def pack_in_a_process(cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", PACK],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_a_second_process_finds_what_the_first_one_compiled(tmp_path):
    assert pack_in_a_process(tmp_path).stdout == "[[3, 0], [2, 1]]\n"
    code = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}
    assert len(code) > 5
    done = pack_in_a_process(tmp_path)
    assert (done.stdout, done.stderr) == ("[[3, 0], [2, 1]]\n", "")
    assert code == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")}


def test_where_nothing_can_be_written_packing_goes_on_and_says_why_it_is_slow():
    done = pack_in_a_process(Path("/dev/null/cache"))
    assert done.stdout == "[[3, 0], [2, 1]]\n"
    assert "cannot write to /dev/null/cache" in done.stderr
    assert "set NUMBA_CACHE_DIR to a directory" in done.stderr


def test_a_change_in_any_file_has_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(_compile, "_SOURCES", tmp_path)
    monkeypatch.setattr(_compile.numba.config, "CACHE_DIR", "")
    (tmp_path / "_one.py").write_text("x = 1\n")
    (tmp_path / "_two.py").write_text("from _one import x\n")
    before = _compile._cache_directory()
    assert before == _compile._cache_directory() and before.parent == tmp_path / "__pycache__"
    (tmp_path / "_one.py").write_text("x = 2\n")
    assert _compile._cache_directory() not in (before, None)


@pytest.mark.parametrize("word", [1, 2, 3, 2**63, 2**64 - 1, 2**32, 5 << 40])
def test_zeros_of_a_word(word):
    @_compile.compiled
    def zeros(word):
        return leading_zeros(word), trailing_zeros(word)

    expected = 64 - word.bit_length(), (word & -word).bit_length() - 1
    assert zeros(np.uint64(word)) == expected


@given(
    size=st.integers(1, 20_000),
    seed=st.integers(0, 2**32),
    changes=st.integers(1, 200),
)
@settings(max_examples=100, deadline=None)
def test_a_set_of_integers_knows_its_neighbours(size, seed, changes):
    rng = np.random.default_rng(seed)
    bits, members = empty_set(size), set()
    for _ in range(changes):
        member, bound = rng.integers(0, size, 2).tolist()
        if rng.random() < 0.6:
            add(bits, member)
            members.add(member)
        elif member in members:
            remove(bits, member)
            members.remove(member)
        assert at_most(bits, bound) == max((m for m in members if m <= bound), default=-1)
        assert at_least(bits, bound) == min((m for m in members if m >= bound), default=-1)
