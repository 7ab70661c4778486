"""Checkpoints are whole or not there, a damaged one is noticed, and the right ones go."""

from __future__ import annotations

import errno
import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from sft import keeping
from sft.errors import TrainingError
from sft.keeping import (
    SEAL,
    begin,
    checksums,
    newest_whole,
    prune,
    publish,
    seal,
    verify,
    whole_checkpoints,
)


def write_content(partial: Path, seed: int = 0) -> None:
    (partial / "weights").mkdir()
    (partial / "checkpoint.json").write_text(json.dumps({"format": 1, "step": seed}))
    (partial / "weights" / "__0_0.distcp").write_bytes(bytes([seed % 256]) * 3000)
    (partial / "weights" / ".metadata").write_bytes(b"metadata")


def leave(run_dir: Path, step: int) -> Path:
    partial = begin(run_dir, step)
    write_content(partial, step)
    seal(partial)
    return publish(partial, step)


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def damage(checkpoint: Path) -> None:
    path = checkpoint / "weights" / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    content[1500] ^= 1
    path.write_bytes(content)


def test_a_checkpoint_is_published_whole(tmp_path: Path) -> None:
    partial = begin(tmp_path, 5)
    assert partial.name == ".step-5.partial"
    write_content(partial, 5)
    assert whole_checkpoints(tmp_path) == []
    seal(partial)
    final = publish(partial, 5)
    assert final == tmp_path / "checkpoints" / "step-5"
    assert names(tmp_path) == ["latest", "step-5"]
    assert verify(final) is None


def test_the_seal_lists_every_other_file(tmp_path: Path) -> None:
    final = leave(tmp_path, 5)
    listed = json.loads((final / SEAL).read_text())["files"]
    on_disk = {p.relative_to(final).as_posix() for p in final.rglob("*") if p.is_file()}
    assert listed.keys() == on_disk - {SEAL}
    data = (final / "weights" / "__0_0.distcp").read_bytes()
    assert listed["weights/__0_0.distcp"] == [3000, zlib.crc32(data)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_shares_of_the_checksums_are_the_whole(tmp_path: Path, ranks: int) -> None:
    partial = begin(tmp_path, 1)
    write_content(partial)
    shares = [checksums(partial, rank, ranks) for rank in range(ranks)]
    together = {name: s for share in shares for name, s in share.items()}
    assert together == checksums(partial)
    assert sum(map(len, shares)) == len(together) == 3
    seal(partial, together)
    assert verify(publish(partial, 1)) is None


def test_latest_points_to_the_newest(tmp_path: Path) -> None:
    for step in (9, 10):
        leave(tmp_path, step)
        link = tmp_path / "checkpoints" / "latest"
        assert os.readlink(link) == f"step-{step}"  # relative: the run may be moved


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    whole = leave(tmp_path, 3)
    write_content(begin(tmp_path, 6))
    (tmp_path / "checkpoints" / ".latest.partial").symlink_to("step-6")
    (tmp_path / "checkpoints" / "notes.txt").write_text("somebody's")
    assert newest_whole(tmp_path, pytest.fail) == whole
    partial = begin(tmp_path, 7)
    assert list(partial.iterdir()) == []
    assert names(tmp_path) == [".step-7.partial", "latest", "notes.txt", "step-3"]


def test_a_step_that_is_written_again_is_replaced(tmp_path: Path) -> None:
    damage(leave(tmp_path, 3))
    final = leave(tmp_path, 3)
    assert verify(final) is None
    assert names(tmp_path) == ["latest", "step-3"]


def test_what_was_left_while_replacing_is_removed(tmp_path: Path) -> None:
    leave(tmp_path, 3).rename(tmp_path / "checkpoints" / ".step-3.replaced.partial")
    begin(tmp_path, 4)
    assert names(tmp_path) == [".step-4.partial", "latest"]


def _drop(path: Path) -> None:
    path.unlink()


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    damage(path.parent.parent)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_drop, "weights/__0_0.distcp is missing"),
        (_shorten, "weights/__0_0.distcp has 2999 bytes instead of 3000"),
        (_flip, "weights/__0_0.distcp has another checksum than was written"),
    ],
)
def test_damage_is_named(tmp_path: Path, harm: Any, says: str) -> None:
    final = leave(tmp_path, 5)
    harm(final / "weights" / "__0_0.distcp")
    assert verify(final) == says


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": {}}', '{"files": {"a": 1}}'])
def test_a_damaged_seal_is_named(tmp_path: Path, content: str) -> None:
    final = leave(tmp_path, 5)
    (final / SEAL).write_text(content)
    assert verify(final) == "files.json is damaged"


def test_without_a_seal_only_the_old_format_passes(tmp_path: Path) -> None:
    final = leave(tmp_path, 5)
    (final / SEAL).unlink()
    assert verify(final) is None
    (final / "checkpoint.json").write_text('{"format": 2}')
    assert verify(final) == "has no files.json; it is half-written"
    (final / "checkpoint.json").unlink()
    assert "half-written" in (verify(final) or "")
    assert "half-written" in (verify(tmp_path / "nothing") or "")


def test_the_newest_whole_one_is_found_and_the_others_are_named(tmp_path: Path) -> None:
    said: list[str] = []
    assert newest_whole(tmp_path, said.append) is None
    for step in (5, 20, 100):  # as text, 100 comes before 20
        leave(tmp_path, step)
    assert [p.name for p in whole_checkpoints(tmp_path)] == ["step-100", "step-20", "step-5"]
    damage(tmp_path / "checkpoints" / "step-100")
    (tmp_path / "checkpoints" / "step-20" / "weights" / ".metadata").unlink()
    found = newest_whole(tmp_path, said.append)
    assert found == tmp_path / "checkpoints" / "step-5"
    assert len(said) == 2
    assert "step-100: is damaged and not used: weights/__0_0.distcp has another check" in said[0]
    assert "step-20: is damaged and not used: weights/.metadata is missing" in said[1]


@pytest.mark.parametrize(
    ("keep_last", "best", "kept"),
    [
        (None, None, [1, 2, 3, 4]),
        (9, None, [1, 2, 3, 4]),
        (2, None, [3, 4]),
        (1, 2, [2, 4]),
        (1, 4, [4]),
        (1, 7, [4]),
    ],
)
def test_old_ones_go(
    tmp_path: Path, keep_last: int | None, best: int | None, kept: list[int]
) -> None:
    for step in (1, 2, 3, 4):
        leave(tmp_path, step)
    removed = prune(tmp_path, keep_last, best)
    assert names(tmp_path) == ["latest", *(f"step-{step}" for step in kept)]
    assert len(removed) == 4 - len(kept)


def test_the_newest_whole_one_never_goes(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        leave(tmp_path, step)
    for step in (3, 4):
        damage(tmp_path / "checkpoints" / f"step-{step}")
    prune(tmp_path, 1)
    assert names(tmp_path) == ["latest", "step-2", "step-4"]


def test_one_that_was_just_written_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        newest = leave(tmp_path, step)
    monkeypatch.setattr(keeping, "verify", pytest.fail)
    assert [p.name for p in prune(tmp_path, 1, whole=newest)] == ["step-1"]


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    partial = begin(tmp_path, 5)
    write_content(partial)
    monkeypatch.setattr(*((os, "fsync") if where == "fsync" else (Path, "replace")), full_disk)
    with pytest.raises(TrainingError, match=r"step-5.*No space left on device.*[Mm]ake room"):
        seal(partial)
        publish(partial, 5)
    assert not partial.exists()


def test_a_name_that_cannot_be_given_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = begin(tmp_path, 5)
    write_content(partial)
    seal(partial)
    monkeypatch.setattr(Path, "rename", full_disk)
    with pytest.raises(TrainingError, match=r"checkpoints/step-5: cannot be written"):
        publish(partial, 5)
    assert names(tmp_path) == []


def test_a_directory_that_cannot_be_made_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(TrainingError, match="cannot be written"):
        begin(tmp_path, 5)


def test_one_that_cannot_be_removed_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        leave(tmp_path, step)
    monkeypatch.setattr(shutil, "rmtree", full_disk)
    with pytest.raises(TrainingError, match="step-1: cannot be removed"):
        prune(tmp_path, 1)
    assert [p.name for p in whole_checkpoints(tmp_path)] == ["step-2"]
