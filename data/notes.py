"""What is known of a record besides its own bytes, carried in front of them.

A record travels as bytes, from the file to the parser. Some come with a note: that the file is
damaged where they should stand, or which format their data set has. No JSON starts with NUL, so
a line that does is a line with a note:

    NUL, the note as JSON, NUL, the record

Whoever reads a user's file gives a line that starts with NUL an empty note (:func:`guard`), so no
file can pass its own bytes off as one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

_NUL = b"\0"


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a note says.

    Attributes:
        damage: why there is no record; None where there is one.
        format: the name of the record's format; None: that of the run.
        columns: which keys the record calls by another name.
    """

    damage: str | None = None
    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


_EMPTY = Note()


def guard(line: bytes) -> bytes:
    """A line of a user's file, safe from being taken for one with a note."""
    return _with({}, line) if line.startswith(_NUL) else line


def damaged(reason: str) -> bytes:
    """A line that stands for records that cannot be read.

    Args:
        reason: a short phrase, the same for every such damage.
    """
    return _with({"damage": reason}, b"")


def of_format(name: str, columns: Mapping[str, str]) -> bytes:
    """The note for the lines of a data set with a format of its own, for :func:`annotate`."""
    return _with({"format": name, "columns": dict(columns)}, b"")


def annotate(line: bytes, note: bytes) -> bytes:
    """Put a note in front of a line, unless what it has says that there is no record."""
    found, record = split(line)
    return line if found.damage else note + record


def split(line: bytes) -> tuple[Note, bytes]:
    """The note of a line, and its record.

    Raises:
        ValueError: the line starts with NUL and has no note.
    """
    if not line.startswith(_NUL):
        return _EMPTY, line
    note, nul, record = line[1:].partition(_NUL)
    if not nul:
        raise ValueError("a line that starts with NUL has a note")
    return _read(note), record


def _with(note: Mapping[str, object], record: bytes) -> bytes:
    return _NUL + json.dumps(note).encode() + _NUL + record


@lru_cache(maxsize=256)
def _read(note: bytes) -> Note:
    return Note(**json.loads(note))
