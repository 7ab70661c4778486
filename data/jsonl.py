"""A JSONL file with random access: one scan finds the rows, then any row is one read.

A row is a line that is not blank. Row ``i`` is the bytes ``[offsets[i], offsets[i + 1])``, blank
lines around it included: that is how Energon counts, and its index ``FILE.jsonl.idx`` (the offsets
as little-endian uint64) is kept beside the data. Unlike Energon's own preparation, a line that is
no JSON is a row like any other: it is counted and reported when it is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data.errors import DataError

_BOM = b"\xef\xbb\xbf"


@dataclass(eq=False)
class JsonlFile:
    """An indexed file; safe to pickle and to use after a fork.

    Attributes:
        path: absolute path.
        offsets: int64 ``[rows + 1]``, bytes; the last is the size of the file.
        line_numbers: int64 ``[rows]``, counted from 1, blank lines counted too.
        fingerprints: uint64 ``[rows]``, a hash of each row's bytes without surrounding whitespace.
    """

    path: Path
    offsets: npt.NDArray[np.int64]
    line_numbers: npt.NDArray[np.int64]
    fingerprints: npt.NDArray[np.uint64]
    # (process id, file descriptor); opened at the first read, by each process for itself.
    _opened: tuple[int, int] | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return int(self.line_numbers.size)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __del__(self) -> None:
        opened = self.__dict__.get("_opened")
        if opened is not None and opened[0] == os.getpid():
            os.close(opened[1])

    def read(self, row: int) -> bytes:
        """Return the bytes of one row, without surrounding whitespace or byte order mark.

        Raises:
            DataError: the file is no longer the one that was indexed.
            IndexError: there is no such row.
        """
        if not 0 <= row < len(self):
            raise IndexError(f"{self.path} has {len(self)} rows, asked for row {row}")
        start, end = int(self.offsets[row]), int(self.offsets[row + 1])
        # pread has no file position, so threads and forked processes cannot disturb each other.
        line = os.pread(self._descriptor(), end - start, start)
        if len(line) != end - start:
            raise self._changed()
        return _clean(line, first=start == 0)

    def source_id(self, row: int) -> str:
        """Return ``name.jsonl:LINE``."""
        return f"{self.path.name}:{self.line_numbers[row]}"

    def _descriptor(self) -> int:
        if self._opened is None or self._opened[0] != os.getpid():
            try:
                descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise DataError(f"{self.path}: {error.strerror}, though it was indexed") from error
            self._opened = (os.getpid(), descriptor)
            if os.fstat(descriptor).st_size != self.offsets[-1]:
                raise self._changed()
        return self._opened[1]

    def _changed(self) -> DataError:
        return DataError(f"{self.path} changed while it was in use; start again to index it anew")


@dataclass(frozen=True, eq=False)
class Records:
    """Some rows of a file, in a given order.

    Attributes:
        file: where they are.
        rows: int64 ``[n]``, indices into the rows of ``file``.
    """

    file: JsonlFile
    rows: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.rows.size)

    def read(self, i: int) -> bytes:
        """Return the bytes of the i-th of these rows."""
        return self.file.read(int(self.rows[i]))

    def source_id(self, i: int) -> str:
        """Return ``name.jsonl:LINE`` of the i-th of these rows."""
        return self.file.source_id(int(self.rows[i]))


def open_jsonl(path: str | Path, *, key: str = "data.path") -> JsonlFile:
    """Scan a file and bring Energon's index beside it up to date.

    The index is written only when it is missing or wrong, and only for a name that ends in
    ``.jsonl``, as Energon knows no other. A directory that cannot be written is no error.

    Args:
        path: the file; ``~`` is expanded.
        key: the configuration key that named the file, for messages.

    Raises:
        DataError: there is no such file, it cannot be read, or it holds no rows.
    """
    path = Path(os.path.abspath(Path(path).expanduser()))
    try:
        if not path.exists():
            raise DataError(f"{key}={path} does not exist; set {key} to a .jsonl file")
        if not path.is_file():
            what = "a directory" if path.is_dir() else "not a regular file"
            raise DataError(f"{key}={path} is {what}; set {key} to one .jsonl file")
        file = _scan(path)
    except OSError as error:
        raise DataError(
            f"{key}={path} cannot be read ({error.strerror}); set {key} to a "
            "file that this user may read"
        ) from error
    if not len(file):
        raise DataError(
            f"{key}={path} holds no conversations, it is empty or has only blank lines; "
            f"set {key} to a file with one JSON object per line"
        )
    if path.suffix == ".jsonl":
        _renew_index(file)
    return file


def split_by_conversation(
    file: JsonlFile, fraction: float, *, limit: int | None = None
) -> tuple[Records, Records]:
    """Split a file into training and validation rows, both in file order.

    Validation gets the ``round(n * fraction)`` rows with the smallest fingerprints. Equal rows
    have equal fingerprints and stay on one side, or a conversation would be validated on after
    it was trained on; where they straddle the cut, the nearest cut that keeps them together is
    taken. The split depends on the contents only, not on the order of the file.

    Args:
        file: the file to split.
        fraction: share of the rows for validation, in ``[0, 1)``; 0 gives no validation rows,
            anything above gives at least one, and training always keeps at least one.
        limit: split only the first so many rows.

    Returns:
        Training rows, validation rows.

    Raises:
        DataError: there are fewer than two different conversations to split.
        ValueError: ``fraction`` is outside its range.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction={fraction} must be at least 0 and below 1")
    prints = file.fingerprints[:limit]
    n = prints.size
    if fraction == 0:
        return Records(file, np.arange(n)), Records(file, np.arange(0))
    ordered = np.sort(prints)
    cuts = 1 + np.flatnonzero(ordered[1:] != ordered[:-1])
    if not cuts.size:
        raise DataError(
            f"data.val_fraction={fraction}: {file.path} has {n} row(s) and no two that differ, too "
            "few to hold some out for validation; set data.val_path to a file of its own, or "
            "data.val_fraction=0"
        )
    cut = cuts[np.argmin(np.abs(cuts - round(n * fraction)))]
    held_out = prints < ordered[cut]
    return Records(file, np.flatnonzero(~held_out)), Records(file, np.flatnonzero(held_out))


def write_jsonl(path: str | Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line; the file appears complete or not at all."""
    write_atomically(path, (json.dumps(record).encode() + b"\n" for record in records))


def write_atomically(path: str | Path, chunks: Iterable[bytes]) -> None:
    """Write a file under a name of its own and rename it once it is complete.

    Several processes may write the same path at once: the last rename wins, and readers see one
    complete file or another.

    Raises:
        OSError: the directory cannot be written; nothing is left behind.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as out:
            out.writelines(chunks)
            out.flush()
            os.fsync(out.fileno())  # or a power cut could leave the new name on an empty file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _scan(path: Path) -> JsonlFile:
    offsets, line_numbers, fingerprints = array("q"), array("q"), array("Q")
    position = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            content = _clean(line, first=number == 1)
            if content:
                offsets.append(position if offsets else 0)  # blank lines in front go to row 0
                line_numbers.append(number)
                digest = blake2b(content, digest_size=8).digest()
                fingerprints.append(int.from_bytes(digest, "little"))
            position += len(line)
    offsets.append(position)
    return JsonlFile(
        path=path,
        offsets=np.array(offsets, dtype=np.int64),
        line_numbers=np.array(line_numbers, dtype=np.int64),
        fingerprints=np.array(fingerprints, dtype=np.uint64),
    )


def _clean(line: bytes, *, first: bool) -> bytes:
    # Without the mark, or moving the first line elsewhere would change its fingerprint.
    return (line.removeprefix(_BOM) if first else line).strip()


def _renew_index(file: JsonlFile) -> None:
    path = file.path.with_name(file.path.name + ".idx")
    index = file.offsets.astype("<u8").tobytes()
    with contextlib.suppress(OSError):
        if path.read_bytes() == index:
            return
    # No index is needed to go on: the offsets are in memory.
    with contextlib.suppress(OSError):
        write_atomically(path, [index])
