"""What a kind of file is: where its records are and how they are read, one after another."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from data import notes

_CHUNK = 1 << 18  # bytes


class Damaged(Exception):
    """A file cannot be read further; ``reason`` is a short phrase, the same for every such damage.

    It stands in for the records that are lost with the rest, and is counted as one.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Unusable(Exception):
    """A file that is whole and cannot be used as it is; the message says why and what to change."""


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a file.

    Attributes:
        label: which one it is, for people: a line's number, a record's number, both from 1, or a
            sample's key. No two of a file are equal.
        line: its JSON without newlines, by :mod:`data.notes`; it need not be valid.
    """

    label: int | str
    line: bytes


class Container(ABC):
    """A kind of file that holds records. It is found by the end of the file's name.

    Attributes:
        suffixes: with the dot.
        can_be_compressed: whether it is read from front to back, so that it may stand in a
            compressed file.
    """

    suffixes: ClassVar[tuple[str, ...]]
    can_be_compressed: ClassVar[bool] = False

    @abstractmethod
    def rows(self, stream: io.BufferedReader) -> Iterator[Row]:
        """Every record, in order.

        A single record that cannot be read is a row with the damage in its place.

        Args:
            stream: the file from its start; it can be seeked in unless ``can_be_compressed``.

        Raises:
            Damaged: there is no reading on from here.
            Unusable: it is not for this program to say which records are meant.
        """

    def has_lines(self, path: Path) -> bool:
        """Whether each line of the file is a record, so that it can be used where it is.

        Raises:
            OSError: the file cannot be read.
        """
        return False


class Compression(ABC):
    """A way to compress a file.

    Attributes:
        suffixes: with the dot; what is before says what is in it.
    """

    suffixes: ClassVar[tuple[str, ...]]

    @abstractmethod
    def chunks(self, stream: io.BufferedReader) -> Iterator[bytes]:
        """The content, in pieces.

        Raises:
            Damaged: after the last piece that could be had.
        """

    def open(self, stream: io.BufferedReader) -> io.BufferedReader:
        """The content, as a stream that raises :class:`Damaged` where it breaks off."""
        return io.BufferedReader(_Chunks(self.chunks(stream)))


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        n = min(len(buffer), len(self._left))
        buffer[:n] = self._left[:n]
        self._left = self._left[n:]
        return n


def look_at(stream: io.BufferedReader, size: int) -> tuple[bytes, io.BufferedReader]:
    """Read the first ``size`` bytes, fewer where the stream ends or breaks off before.

    Returns:
        They, and a stream from the start that takes the place of ``stream``.
    """
    head, damage = read_most(stream, size)

    def chunks() -> Iterator[bytes]:
        yield head
        if damage is not None:
            raise damage
        while chunk := stream.read1(_CHUNK):
            yield chunk

    return head, io.BufferedReader(_Chunks(chunks()), _CHUNK)


def read_most(stream: io.BufferedReader, size: int) -> tuple[bytes, Damaged | None]:
    """Read ``size`` bytes, fewer only where the stream ends or breaks off before.

    ``stream.read`` would lose what it had read when it breaks off.

    Returns:
        They, and the damage where it does.
    """
    content = bytearray()
    try:
        while len(content) < size and (part := stream.read1(size - len(content))):
            content += part
    except Damaged as damage:
        return bytes(content), damage
    return bytes(content), None


def one_line(record: bytes) -> bytes:
    """A record on one line, and no more valid than it was."""
    record = record.strip()
    if b"\n" in record or b"\r" in record:
        # Between the parts of valid JSON a newline is a space. In a string it is a fault.
        filler = b"  " if _is_json(record) else b"\1\1"
        record = record.translate(bytes.maketrans(b"\n\r", filler))
    return notes.guard(record)


def _is_json(record: bytes) -> bool:
    try:
        json.loads(record)
    except (ValueError, RecursionError):
        return False
    return True
