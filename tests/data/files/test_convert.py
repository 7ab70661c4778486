"""The cache of converted files: written once, whole, and anew for a file that changed."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

import data.files.convert as convert
from data.errors import DataError
from data.files.containers.jsonl import JsonLines
from tests.data.files.stores import chats, opened, records, rows, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "c.jsonl.gz", chats(5))


def cached(path: Path) -> dict[str, tuple[int, int]]:
    folder = path.parent / "cache" / "converted"
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.iterdir()}


def test_what_is_left(path: Path) -> None:
    file = opened(path)
    assert file.path.parent == path.parent / "cache" / "converted"
    stem = file.path.name.removesuffix(".jsonl")
    assert stem.startswith("c.jsonl.gz.")
    assert sorted(cached(path)) == [f"{stem}.jsonl", f"{stem}.lock", f"{stem}.npz"]


def test_a_second_time_nothing_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, before = opened(path), cached(path)
    monkeypatch.setattr(JsonLines, "rows", None)  # would fail if it were called
    second = opened(path)
    assert rows(second) == rows(first)
    assert second.fingerprints.tolist() == first.fingerprints.tolist()
    assert second.offsets.tolist() == first.offsets.tolist()
    assert second.damage == first.damage
    assert cached(path) == before


def test_damage_is_remembered(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])
    assert opened(path).damage == opened(path).damage == "compressed data breaks off"


def test_a_file_that_changes_is_converted_anew(path: Path) -> None:
    assert records(opened(path)) == chats(5)
    stat = path.stat()
    write(path, chats(5, tag="x"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert records(opened(path)) == chats(5, tag="x")


def test_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for folder in ("a", "b"):
        path = write(tmp_path / folder / "c.jsonl.gz", chats(2, tag=folder))
        os.utime(path, ns=(1, 1))
    found = [records(opened(tmp_path / f / "c.jsonl.gz", cache)) for f in ("a", "b")]
    assert found == [chats(2, tag="a"), chats(2, tag="b")]


@pytest.mark.parametrize("suffix", [".jsonl", ".npz"])
@pytest.mark.parametrize("how", ["gone", "cut", "empty"])
def test_a_damaged_cache_is_written_again(path: Path, suffix: str, how: str) -> None:
    part = opened(path).path.with_suffix(suffix)
    if how == "gone":
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[:-5] if how == "cut" else b"")
    assert records(opened(path)) == chats(5)


def test_an_interrupted_conversion_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            opened(path)
    assert [name for name in cached(path) if not name.endswith(".lock")] == []
    assert records(opened(path)) == chats(5)


def test_a_cache_that_cannot_be_written_names_its_key(path: Path) -> None:
    (path.parent / "file").touch()
    with pytest.raises(DataError, match=r"^data\.cache_dir=.*/file: cannot write .* set data\.ca"):
        opened(path, path.parent / "file")
    with pytest.raises(DataError, match=r"^data\.cache_dir=~no-one: cannot write ~no-one"):
        opened(path, Path("~no-one"))


def test_a_cache_of_somebody_else_s_names_its_key(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, mode: str = "r", **rest: Any) -> Any:
        if "a" in mode:
            raise PermissionError(errno.EACCES, "Permission denied")
        return original(self, mode, **rest)

    original = Path.open  # root may write everywhere, so no mode of the directory's would do
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"^data\.cache_dir=.*/cache: cannot write .* \(Permission"):
        opened(path)


def test_a_cache_that_is_cleared_in_use_is_named(path: Path) -> None:
    file = opened(path)
    file.path.unlink()
    told = (
        r"^data\.path=.*c\.jsonl\.gz: .*\.jsonl, what it was converted to, cannot be read any more"
    )
    with pytest.raises(DataError, match=told):
        file.read(0)


def test_a_file_that_changes_while_it_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = JsonLines.rows

    def rows_and_more(self: Any, stream: Any) -> Any:
        yield from original(self, stream)
        os.utime(path, ns=(1, 1))

    monkeypatch.setattr(JsonLines, "rows", rows_and_more)
    with pytest.raises(DataError, match=r"c\.jsonl\.gz changed while it was read; start again"):
        opened(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read(path: Path) -> None:
    path.chmod(0)
    with pytest.raises(DataError, match=r"^data\.path=.* cannot be read \(Permission denied\)"):
        opened(path)


def test_an_unknown_kind_of_file_names_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "c.txt").touch()
    with pytest.raises(DataError, match=r"c\.txt: its name does not say .* \.parquet, \.tar, and"):
        opened(tmp_path / "c.txt")


def test_a_converted_file_can_be_pickled(path: Path) -> None:
    file = opened(path)
    file.read(0)
    assert rows(pickle.loads(pickle.dumps(file))) == rows(file)


def _open(path: Path, barrier: Any, results: Any) -> None:
    barrier.wait(timeout=30)
    results.put(rows(opened(path)))


def test_processes_that_convert_at_once_all_succeed(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl.gz", chats(2000))
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    workers = [context.Process(target=_open, args=(path, barrier, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    got = [results.get(timeout=30) for _ in workers]
    for worker in workers:
        worker.join()
    assert got[0] == got[1] == got[2]
    assert len(got[0]) == 2000


def test_without_locks_each_converts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(convert.fcntl, "flock", refuse)
    assert records(opened(path)) == chats(5)


@pytest.mark.parametrize(
    ("name", "package"), [("c.parquet", "pyarrow"), ("c.jsonl.zst", "zstandard")]
)
def test_a_package_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    path = write(tmp_path / name, chats(2))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        DataError, match=rf"^data\.path=.*{name}: it needs the package {package}: pip"
    ):
        opened(path)
