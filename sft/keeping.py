"""Checkpoints on disk: written aside, sealed, published, verified, and taken away again.

Under ``run_dir/checkpoints``::

    step-N/          whole: it got its name when everything was in it
    step-N/files.json   every other file's size and checksum
    latest           symbolic link to the newest
    .step-N.partial  being written; left there only by a run that was killed

One rank calls this, except :func:`checksums`, whose work can be shared. No torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sft.errors import TrainingError
from sft.files import write_json

SEAL = "files.json"
LATEST = "latest"
_FORMAT = 1
_DIRECTORY = "checkpoints"
_STEP = re.compile(r"step-(\d+)")
_PARTIAL = re.compile(r"\.(step-\d+(\.replaced)?|latest)\.partial")
_BLOCK = 1 << 20  # bytes that are read at once


def begin(run_dir: Path, step: int) -> Path:
    """An empty directory to write a checkpoint in; what killed runs left half-written goes.

    Args:
        run_dir: the run's.
        step: optimizer steps done.

    Raises:
        TrainingError: it cannot be made.
    """
    partial = run_dir / _DIRECTORY / f".step-{step}.partial"
    with _cannot_be_written(partial, partial=partial):
        partial.parent.mkdir(parents=True, exist_ok=True)
        remove_partials(run_dir)
        partial.mkdir()
    return partial


def remove_partials(run_dir: Path) -> None:
    """Remove what is half-written; nothing may be being written.

    Raises:
        OSError: it cannot be removed.
    """
    directory = run_dir / _DIRECTORY
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        if _PARTIAL.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def checksums(directory: Path, rank: int = 0, ranks: int = 1) -> dict[str, list[int]]:
    """Read a share of the files, and make sure that they are on the disk.

    Args:
        directory: with all files that a checkpoint is to have.
        rank: whose share.
        ranks: among how many it is shared; all shares together hold every file once.

    Returns:
        By path below ``directory``: bytes and CRC-32.

    Raises:
        TrainingError: a file cannot be read or has no room on the disk; then nothing is left.
    """
    # The largest first and in turns, so that no rank has all of them; every rank sees one order.
    with _cannot_be_written(directory, partial=directory):
        files = sorted(_files(directory), key=lambda p: (-p.stat().st_size, p))
        return {
            path.relative_to(directory).as_posix(): _checksum(path, to_disk=True)
            for path in files[rank::ranks]
        }


def seal(partial: Path, sums: Mapping[str, list[int]] | None = None) -> None:
    """Write down what a checkpoint holds; nothing may be added after it.

    Args:
        partial: from :func:`begin`, with everything in it.
        sums: the shares of :func:`checksums` together; None reads the files here.

    Raises:
        TrainingError: it cannot be written.
    """
    sums = checksums(partial) if sums is None else sums
    with _cannot_be_written(partial, partial=partial):
        write_json(partial / SEAL, {"format": _FORMAT, "files": dict(sorted(sums.items()))})
        _to_disk(partial / SEAL)
        for directory in {partial, *(path.parent for path in _files(partial))}:
            _to_disk(directory)


def publish(partial: Path, step: int) -> Path:
    """Give a sealed checkpoint its name, and let ``latest`` point to it.

    One that is there for this step is replaced.

    Args:
        partial: from :func:`begin`.
        step: optimizer steps done.

    Returns:
        The checkpoint.

    Raises:
        TrainingError: it cannot be renamed.
    """
    final = partial.with_name(f"step-{step}")
    with _cannot_be_written(final, partial=partial):
        if final.exists():
            # Never a moment with a half-removed checkpoint under a whole one's name.
            old = final.rename(partial.with_name(f".step-{step}.replaced.partial"))
            partial.rename(final)
            shutil.rmtree(old)
        else:
            partial.rename(final)
        link = partial.with_name(f".{LATEST}.partial")
        link.unlink(missing_ok=True)
        link.symlink_to(final.name)
        link.replace(partial.with_name(LATEST))
        _to_disk(final.parent)
    return final


def abandon(partial: Path) -> None:
    """Remove a checkpoint that could not be written, as far as that is possible."""
    shutil.rmtree(partial, ignore_errors=True)


def verify(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in words that follow its path; None where nothing is.

    One from before checkpoints were sealed holds nothing to compare with, and passes.

    Args:
        checkpoint: the directory.
    """
    try:
        if not (checkpoint / SEAL).exists():
            return _without_seal(checkpoint)
        listed = _listed(checkpoint / SEAL)
        if listed is None:
            return f"{SEAL} is damaged"
        return next((f for n, s in listed.items() if (f := _fault(checkpoint / n, n, s))), None)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def whole_checkpoints(run_dir: Path) -> list[Path]:
    """All checkpoints that have their name, the newest first; they are not verified.

    Raises:
        OSError: the directory cannot be read.
    """
    directory = run_dir / _DIRECTORY
    found = {
        int(match[1]): path
        for path in (directory.iterdir() if directory.is_dir() else ())
        if (match := _STEP.fullmatch(path.name)) is not None and path.is_dir()
    }
    return [found[step] for step in sorted(found, reverse=True)]


def newest_whole(run_dir: Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint with nothing wrong; None where there is none.

    Args:
        run_dir: the run's.
        say: told of every newer one, and what is wrong with it.
    """
    for checkpoint in whole_checkpoints(run_dir):
        fault = verify(checkpoint)
        if fault is None:
            return checkpoint
        say(f"{checkpoint}: is damaged and not used: {fault}")
    return None


def prune(
    run_dir: Path, keep_last: int | None, best: int | None = None, *, whole: Path | None = None
) -> list[Path]:
    """Remove old checkpoints, but never the newest that is whole.

    Args:
        run_dir: the run's.
        keep_last: how many of the newest to keep, at least 1; None keeps all.
        best: the step of one to keep besides: with the lowest validation loss, say.
        whole: one that need not be verified, because it has just been written.

    Returns:
        Those that were removed.

    Raises:
        TrainingError: one cannot be removed.
    """
    if keep_last is None:
        return []
    assert keep_last >= 1
    checkpoints = whole_checkpoints(run_dir)
    keep = {*checkpoints[:keep_last], run_dir / _DIRECTORY / f"step-{best}"}
    removed = [checkpoint for checkpoint in checkpoints if checkpoint not in keep]
    if removed:
        is_whole = (c for c in checkpoints if c == whole or verify(c) is None)
        newest = next(is_whole, None)
        removed = [checkpoint for checkpoint in removed if checkpoint != newest]
    for checkpoint in removed:
        with _cannot_be_written(checkpoint, done="removed"):
            # Without its name first: a half-removed one is not taken for whole.
            going = checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}.partial"))
            shutil.rmtree(going)
    return removed


@contextmanager
def _cannot_be_written(
    path: Path, *, partial: Path | None = None, done: str = "written"
) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if partial is not None:
            abandon(partial)
        raise TrainingError(
            f"{path}: cannot be {done} ({error.strerror or error}). Make room or mend the "
            "permissions, and go on from the last checkpoint"
        ) from error


def _files(directory: Path) -> list[Path]:
    """All files of a checkpoint but its seal."""
    seal_path = directory / SEAL
    return sorted(p for p in directory.rglob("*") if p.is_file() and p != seal_path)


def _checksum(path: Path, *, to_disk: bool = False) -> list[int]:
    size = crc = 0
    with path.open("rb") as file:
        if to_disk:
            os.fsync(file.fileno())
        while block := file.read(_BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return [size, crc]


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _without_seal(checkpoint: Path) -> str | None:
    try:
        content: Any = json.loads((checkpoint / "checkpoint.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return "has neither files.json nor a checkpoint.json that can be read; it is half-written"
    old = isinstance(content, dict) and content.get("format") == 1
    return None if old else f"has no {SEAL}; it is half-written"


def _listed(path: Path) -> dict[str, list[int]] | None:
    try:
        files: Any = json.loads(path.read_text(encoding="utf-8"))["files"]
        good = all(isinstance(s, list) and len(s) == 2 for s in files.values()) and bool(files)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return files if good else None


def _fault(path: Path, name: str, expected: list[int]) -> str | None:
    if not path.is_file():
        return f"{name} is missing"
    if (size := path.stat().st_size) != expected[0]:
        return f"{name} has {size} bytes instead of {expected[0]}"
    return None if _checksum(path) == expected else f"{name} has another checksum than was written"
