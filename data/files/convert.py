"""Files without random access become JSONL files with it, once.

What comes out is kept in ``CACHE_DIR/converted`` under a name that holds a hash of the file's path,
size and age: a file that has changed is converted anew. ``NAME.jsonl`` has one record per line, by
:mod:`data.notes`; ``NAME.npz`` has the index and is written last, so that it marks the conversion
as complete. The directory may be deleted whenever nothing runs.
"""

from __future__ import annotations

import fcntl
import io
import json
import zipfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from data import notes
from data.errors import DataError
from data.files.base import Damaged, Row, Unusable
from data.files.index import JsonlFile, fingerprint
from data.files.kinds import Kind
from data.files.places import Place, expanded
from data.files.write import write_atomically

# Raise this when the conversion changes, so that no run uses what an earlier version wrote.
_RECIPE = 1


def converted(place: Place, kind: Kind, cache_dir: str, *, what: str) -> JsonlFile:
    """A file as JSONL, from the cache where it is there.

    Several processes may convert the same file at once; where the file system knows locks, one
    does and the others wait.

    Args:
        place: the file.
        kind: what it is.
        cache_dir: the cache; ``~`` is expanded.
        what: what messages call the file.

    Raises:
        DataError: the file cannot be used, or the cache cannot be written.
        OSError: the file cannot be read.
    """
    state = place.state()
    identity = json.dumps([_RECIPE, type(kind.container).__name__, place.url, *state])
    digest = blake2b(identity.encode(), digest_size=8).hexdigest()
    with _cache_errors(cache_dir, Path(cache_dir)):
        folder = expanded(cache_dir).absolute() / "converted"
    path = folder / f"{place.name}.{digest}.jsonl"
    if (found := _load(path, place.name)) is not None:
        return found
    with _cache_errors(cache_dir, path):
        folder.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("ab")
    with _locked(lock):
        if (found := _load(path, place.name)) is not None:
            return found
        file = _convert(place, kind, cache_dir, path, what)
        if place.state() != state:
            raise DataError(f"{what} changed while it was read; start again")
        with _cache_errors(cache_dir, path):
            write_atomically(path.with_suffix(".npz"), [_index_bytes(file)])
    return file


@dataclass
class _Index:
    """The index of a file that is being written."""

    position: int = 0
    offsets: array[int] = field(default_factory=lambda: array("q"))
    fingerprints: array[int] = field(default_factory=lambda: array("Q"))
    labels: list[int | str] = field(default_factory=list)
    damage: str | None = None

    def lines(self, rows: Iterator[Row]) -> Iterator[bytes]:
        """The lines to be written for ``rows``; where these break off, one that says so."""
        try:
            for row in rows:
                yield self._add(row)
        except Damaged as damage:
            yield self._add(Row(self._next_label(), notes.damaged(damage.reason)))

    def _add(self, row: Row) -> bytes:
        note, content = notes.split(row.line)
        self.damage = self.damage or note.damage
        self.labels.append(row.label)
        self.offsets.append(self.position)
        # What is lost is not the same as what else is lost.
        self.fingerprints.append(fingerprint(content or f"{row.label}{row.line!r}".encode()))
        self.position += len(row.line) + 1
        return row.line + b"\n"

    def _next_label(self) -> int | str:
        if not self.labels:
            return 1
        last = self.labels[-1]
        return last + 1 if isinstance(last, int) else f"after {last}"


def _convert(place: Place, kind: Kind, cache_dir: str, path: Path, what: str) -> JsonlFile:
    index = _Index()
    try:
        with place.fetched() as source, source.open("rb") as raw:
            stream = raw if kind.compression is None else kind.compression.open(raw)
            rows = kind.container.rows(stream)
            with _cache_errors(cache_dir, path):
                write_atomically(path, index.lines(_readable(rows)))
    except Unusable as error:
        raise DataError(f"{what}: {error}") from error
    except _Unreadable as error:
        raise error.cause from None
    labels = (
        np.array(index.labels, dtype=np.int64)
        if all(isinstance(label, int) for label in index.labels)
        else np.array([str(label).encode() for label in index.labels], dtype=np.bytes_)
    )
    return JsonlFile(
        path=path,
        offsets=np.array([*index.offsets, index.position], dtype=np.int64),
        labels=labels,
        fingerprints=np.array(index.fingerprints, dtype=np.uint64),
        name=place.name,
        converted=True,
        damage=index.damage,
    )


class _Unreadable(Exception):
    """The source could not be read, which is not a fault of the cache."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _readable(rows: Iterator[Row]) -> Iterator[Row]:
    try:
        yield from rows
    except OSError as error:
        raise _Unreadable(error) from error


def _index_bytes(file: JsonlFile) -> bytes:
    out = io.BytesIO()
    np.savez(
        out,
        offsets=file.offsets,
        labels=file.labels,
        fingerprints=file.fingerprints,
        damage=np.array(file.damage or ""),
    )
    return out.getvalue()


def _load(path: Path, name: str) -> JsonlFile | None:
    """A complete conversion, or None."""
    try:
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as index:
            file = JsonlFile(
                path=path,
                offsets=index["offsets"],
                labels=index["labels"],
                fingerprints=index["fingerprints"],
                name=name,
                converted=True,
                damage=str(index["damage"]) or None,
            )
        return file if path.stat().st_size == file.offsets[-1] else None
    except (OSError, ValueError, LookupError, EOFError, zipfile.BadZipFile):
        return None


@contextmanager
def _locked(file: io.BufferedWriter) -> Iterator[None]:
    with file:
        with suppress(OSError):  # no locks here: each process converts, and the last rename wins
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _cache_errors(cache_dir: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"data.cache_dir={cache_dir}: cannot write {path} ({error.strerror or error}); set "
            "data.cache_dir to a directory that can be written and has room"
        ) from error
