"""One JSON file: an array of records, an object that holds one such array, or a single record.

A file of several JSON lines is treated as JSON Lines, whatever its name says. Otherwise it is read
as a stream, an element at a time, so that a file may be larger than the memory, and what stands
before a damage is used. Rows are numbered from 1.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from data.files.base import Container, Damaged, Row, Unusable, look_at, one_line
from data.files.containers._text import JsonText
from data.files.containers.jsonl import JsonLines
from data.files.index import BOM
from data.formats import is_record, known_formats

_HEAD = 1 << 20  # bytes that are looked at to tell lines from one document
_LINES_LOOKED_AT = 20
_BROKEN = "JSON is broken from here on"
_NO_LIST = "a JSON file without a list of records"


class JsonDocument(Container):
    """See the module."""

    suffixes = (".json",)
    can_be_compressed = True

    def rows(self, stream: io.BufferedReader) -> Iterator[Row]:
        """Every record."""
        head, whole = look_at(stream, _HEAD)
        if _is_lines(head):
            yield from JsonLines().rows(whole)
            return
        text = JsonText(whole)
        start = text.peek()
        if start == "[":
            records = _elements(text)
        elif start == "{":
            records = _of_object(text)
        elif not start:
            return
        else:
            text.value()  # which raises where it is no JSON at all
            raise Damaged(_NO_LIST)
        for number, record in enumerate(records, start=1):
            yield Row(number, record)
        if text.peek():
            raise Damaged(_BROKEN)

    def has_lines(self, path: Path) -> bool:
        """Whether several of the first lines are objects of their own."""
        with path.open("rb") as stream:
            return _is_lines(stream.read(_HEAD))


def _is_lines(head: bytes) -> bool:
    # In one object at most the last element of a list stands alone on a line: others have a comma
    # behind them.
    lines = [line for line in map(bytes.strip, head.removeprefix(BOM).split(b"\n")) if line]
    if not lines or lines[0].startswith(b"["):
        return False
    return sum(map(_is_object, lines[:_LINES_LOOKED_AT])) >= 2


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _elements(text: JsonText) -> Iterator[bytes]:
    """The records of the array that starts here."""
    text.take("[")
    if text.peek() == "]":
        text.take("]")
        return
    while True:
        _, element = text.value()
        yield one_line(element.encode("utf-8", "surrogateescape"))
        if text.take(",]") == "]":
            return


def _of_object(text: JsonText) -> Iterator[bytes]:
    """The records of the object that starts here, or the object itself where it is one."""
    text.hold()
    text.take("{")
    keys: list[str] = []
    lists: list[str] = []
    while text.peek() != "}":
        key = _key(text)
        keys.append(key)
        if not lists and is_record(keys):
            text.rewind()
            _, record = text.value()
            yield one_line(record.encode("utf-8", "surrogateescape"))
            return
        if text.peek(2) == "[{" and key not in _record_keys():
            if lists:
                raise Unusable(
                    f"it holds two lists of records, {lists[0]} and {key}; make a file of each"
                )
            lists.append(key)
            text.release()
            yield from _elements(text)
        else:
            text.value()
        if text.take(",}") == "}":
            break
    else:
        text.take("}")
    if not lists:
        raise Damaged(_NO_LIST)


def _key(text: JsonText) -> str:
    key, _ = text.value()
    text.take(":")
    if not isinstance(key, str):
        raise Damaged(_BROKEN)
    return key


@cache
def _record_keys() -> frozenset[str]:
    """Keys under which a list is part of a record: of a prompt's messages, say."""
    return frozenset(key for found in known_formats().values() for key in found.keys)
