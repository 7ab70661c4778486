"""A JSONL file with random access: one scan finds the rows, then any row is one read.

A row is a line that is not blank. Row ``i`` is the bytes ``[offsets[i], offsets[i + 1])``, blank
lines around it included: that is how Energon counts, and its index ``FILE.jsonl.idx`` (the offsets
as little-endian uint64) is kept beside the data. Unlike Energon's own preparation, a line that is
no JSON is a row like any other: it is counted and reported when it is read.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data import notes
from data.errors import DataError
from data.files.write import write_atomically

BOM = b"\xef\xbb\xbf"


@dataclass(eq=False)
class JsonlFile:
    """An indexed file; safe to pickle and to use after a fork.

    Attributes:
        path: absolute path of what is read: the file itself, or what it was converted to.
        offsets: int64 ``[rows + 1]``, bytes; the last is the size of the file.
        labels: int64 or bytes ``[rows]``, which record of its file a row is: the number of the
            line, counted from 1, blank lines counted too, or what else its container counts by.
        fingerprints: uint64 ``[rows]``, a hash of each row's bytes without surrounding whitespace.
        name: of the file the user gave, for people.
        converted: ``path`` was written by :mod:`data.files.convert`, notes and all.
        damage: why records are missing, the first reason; None where none are.
        what: what messages call the file of the user's; empty: its path.
    """

    path: Path
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[Any]
    fingerprints: npt.NDArray[np.uint64]
    name: str
    converted: bool = False
    damage: str | None = None
    what: str = ""
    # (process id, file descriptor); opened at the first read, by each process for itself.
    _opened: tuple[int, int] | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return int(self.labels.size)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __del__(self) -> None:
        opened = self.__dict__.get("_opened")
        if opened is not None and opened[0] == os.getpid():
            os.close(opened[1])

    def read(self, row: int) -> bytes:
        """Return the bytes of one row, without surrounding whitespace or byte order mark.

        With a note in front where something is known of the row, see :mod:`data.notes`.

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
        content = _clean(line, first=start == 0)
        return content if self.converted else notes.guard(content)

    def source_id(self, row: int) -> str:
        """Return ``name:LABEL``, ``chats.jsonl:17`` say."""
        label = self.labels[row]
        return f"{self.name}:{label.decode() if isinstance(label, bytes) else label}"

    def _descriptor(self) -> int:
        if self._opened is None or self._opened[0] != os.getpid():
            try:
                descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise DataError(
                    f"{self._named()} cannot be read any more ({error.strerror}); start again when "
                    "it is back"
                ) from error
            self._opened = (os.getpid(), descriptor)
            if os.fstat(descriptor).st_size != self.offsets[-1]:
                raise self._changed()
        return self._opened[1]

    def _changed(self) -> DataError:
        return DataError(f"{self._named()} changed while it was in use; start again")

    def _named(self) -> str:
        what = self.what or str(self.path)
        return f"{what}: {self.path}, what it was converted to," if self.converted else what


def index_in_place(path: Path) -> JsonlFile:
    """Scan a file and bring Energon's index beside it up to date.

    The index is written only when it is missing or wrong, and only for a name that ends in
    ``.jsonl``, as Energon knows no other. A directory that cannot be written is no error.

    Args:
        path: absolute.

    Raises:
        OSError: the file cannot be read.
    """
    file = _scan(path)
    if len(file) and path.suffix == ".jsonl":
        _renew_index(file)
    return file


def fingerprint(content: bytes) -> int:
    """The fingerprint of a row, uint64."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def _scan(path: Path) -> JsonlFile:
    offsets, line_numbers, fingerprints = array("q"), array("q"), array("Q")
    position = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            content = _clean(line, first=number == 1)
            if content:
                offsets.append(position if offsets else 0)  # blank lines in front go to row 0
                line_numbers.append(number)
                fingerprints.append(fingerprint(content))
            position += len(line)
    offsets.append(position)
    return JsonlFile(
        path=path,
        offsets=np.array(offsets, dtype=np.int64),
        labels=np.array(line_numbers, dtype=np.int64),
        fingerprints=np.array(fingerprints, dtype=np.uint64),
        name=path.name,
    )


def _clean(line: bytes, *, first: bool) -> bytes:
    # Without the mark, or moving the first line elsewhere would change its fingerprint.
    return (line.removeprefix(BOM) if first else line).strip()


def _renew_index(file: JsonlFile) -> None:
    path = file.path.with_name(file.path.name + ".idx")
    index = file.offsets.astype("<u8").tobytes()
    with contextlib.suppress(OSError):
        if path.read_bytes() == index:
            return
    # No index is needed to go on: the offsets are in memory.
    with contextlib.suppress(OSError):
        write_atomically(path, [index])
