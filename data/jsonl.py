"""Conversations with random access: rows of one or several indexed files, and their split."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data import notes
from data.errors import DataError
from data.files.index import JsonlFile, index_in_place
from data.files.places import expanded
from data.files.write import write_atomically, write_jsonl
from data.windows import Share

__all__ = [
    "JsonlFile",
    "Records",
    "open_jsonl",
    "split_by_conversation",
    "write_atomically",
    "write_jsonl",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Some rows of some files, in a given order; safe to pickle and to use after a fork.

    Attributes:
        files: where they are.
        file_of: int32 ``[n]``, for each row, its index into ``files``.
        rows: int64 ``[n]``, for each row, its index into the rows of its file.
        notes: for each file, what goes in front of its lines, see :mod:`data.notes`; empty: none.
        shares: how often the rows come in an epoch, for consecutive ones together; empty: once.
    """

    files: tuple[JsonlFile, ...]
    file_of: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int64]
    notes: tuple[bytes, ...] = ()
    shares: tuple[Share, ...] = ()

    @classmethod
    def of(
        cls,
        files: Sequence[JsonlFile],
        rows: Sequence[npt.NDArray[np.int64]] | None = None,
        notes: Sequence[bytes] = (),
    ) -> Records:
        """One file's rows after another's.

        Args:
            files: where they are.
            rows: of each file; None: all.
            notes: of each file; empty: none.
        """
        parts = [np.arange(len(file)) for file in files] if rows is None else rows
        of = [np.full(part.size, i, dtype=np.int32) for i, part in enumerate(parts)]
        return cls(
            files=tuple(files),
            file_of=np.concatenate([np.empty(0, np.int32), *of]),
            rows=np.concatenate([np.empty(0, np.int64), *parts]),
            notes=tuple(notes) if any(notes) else (),
        )

    def __len__(self) -> int:
        return int(self.rows.size)

    @property
    def fingerprints(self) -> npt.NDArray[np.uint64]:
        """A hash of each row's bytes, in order, uint64 ``[n]``."""
        prints = np.empty(len(self), dtype=np.uint64)
        for i, file in enumerate(self.files):
            here = self.file_of == i
            prints[here] = file.fingerprints[self.rows[here]]
        return prints

    def read(self, i: int) -> bytes:
        """Return the bytes of the i-th row, with a note where something is known of it."""
        of = int(self.file_of[i])
        line = self.files[of].read(int(self.rows[i]))
        return notes.annotate(line, self.notes[of]) if self.notes and self.notes[of] else line

    def source_id(self, i: int) -> str:
        """Return ``name.jsonl:LINE`` of the i-th row."""
        return self.files[int(self.file_of[i])].source_id(int(self.rows[i]))

    def take(self, which: npt.NDArray[np.int64]) -> Records:
        """Those at the given positions, int64 ``[m]``; each comes once in an epoch."""
        return Records(
            files=self.files,
            file_of=self.file_of[which],
            rows=self.rows[which],
            notes=self.notes,
        )

    def weighted(self, shares: tuple[Share, ...]) -> Records:
        """These, coming as often as ``shares`` says."""
        return replace(self, shares=shares)


def open_jsonl(path: str | Path, *, key: str = "data.path") -> JsonlFile:
    """Index a JSONL file where it is, see :func:`data.files.index.index_in_place`.

    Args:
        path: the file; ``~`` is expanded.
        key: the configuration key that named the file, for messages.

    Raises:
        DataError: there is no such file, it cannot be read, or it holds no rows.
    """
    try:
        path = Path(os.path.abspath(expanded(str(path))))
        if not path.exists():
            raise DataError(f"{key}={path} does not exist; set {key} to a .jsonl file")
        if not path.is_file():
            what = "a directory" if path.is_dir() else "not a regular file"
            raise DataError(f"{key}={path} is {what}; set {key} to one .jsonl file")
        file = index_in_place(path)
    except OSError as error:
        raise DataError(
            f"{key}={path} cannot be read ({error.strerror or error}); set {key} to a "
            "file that this user may read"
        ) from error
    if not len(file):
        raise DataError(
            f"{key}={path} holds no conversations, it is empty or has only blank lines; "
            f"set {key} to a file with one JSON object per line"
        )
    file.what = f"{key}={path}"
    return file


def split_by_conversation(
    data: JsonlFile | Records, fraction: float, *, limit: int | None = None
) -> tuple[Records, Records]:
    """Split conversations into training and validation, both in the order they had.

    Validation gets the ``round(n * fraction)`` rows with the smallest fingerprints. Equal rows
    have equal fingerprints and stay on one side, or a conversation would be validated on after
    it was trained on; where they straddle the cut, the nearest cut that keeps them together is
    taken. The split depends on the contents only, not on their order nor on which file has them.

    Args:
        data: what to split.
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
    records = data if isinstance(data, Records) else Records.of([data])
    prints = records.fingerprints[:limit]
    n = prints.size
    if fraction == 0:
        return records.take(np.arange(n)), records.take(np.arange(0))
    ordered = np.sort(prints)
    cuts = 1 + np.flatnonzero(ordered[1:] != ordered[:-1])
    if not cuts.size:
        where = f"{records.files[0].path} has" if len(records.files) == 1 else "the files have"
        raise DataError(
            f"data.val_fraction={fraction}: {where} {n} row(s) and no two that differ, too "
            "few to hold some out for validation; set data.val_path to a file of its own, or "
            "data.val_fraction=0"
        )
    cut = cuts[np.argmin(np.abs(cuts - round(n * fraction)))]
    held_out = prints < ordered[cut]
    return records.take(np.flatnonzero(~held_out)), records.take(np.flatnonzero(held_out))
