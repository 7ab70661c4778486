"""What a format is, and how the JSON of a record is read, whatever its format."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from data.conversation import BadRecord, Parsed

_MAX_DEPTH = 100  # of what is handed on to a chat template, which walks it recursively

_DECODER = json.JSONDecoder()
# int() refuses more than 4,300 digits. No number that long is of use: any value will do.
_TOLERANT = json.JSONDecoder(parse_int=float)


class Format(ABC):
    """How a record says a conversation. One in a module, which has the format's name.

    Attributes:
        keys: every key of a record that this format reads; ``data.columns`` can rename these.
        signatures: a record is taken to be of this format when it has all keys of one of these.
    """

    keys: ClassVar[tuple[str, ...]]
    signatures: ClassVar[tuple[frozenset[str], ...]]

    @abstractmethod
    def parse(self, record: Mapping[str, Any]) -> Parsed:
        """Read a record. A key with null says as much as no key: Parquet knows no other way.

        Raises:
            BadRecord: it is no usable conversation; the reason is a short constant phrase.
        """


def decode(line: bytes) -> dict[str, Any]:
    """Read a line as a JSON object; integers stay integers.

    A byte order mark in front is tolerated: editors put one at the start of a file.

    Raises:
        BadRecord: it is none.
    """
    record = _load(line)
    if not isinstance(record, dict):
        raise BadRecord("not a JSON object")
    return record


def from_json(text: str) -> Any:
    """What a piece of JSON inside a record says.

    Raises:
        ValueError: it is no JSON.
        BadRecord: it is nested too deeply.
    """
    try:
        try:
            return _DECODER.decode(text)
        except json.JSONDecodeError:
            raise
        except ValueError:  # too many digits
            return _TOLERANT.decode(text)
    except RecursionError:
        raise BadRecord("JSON nested too deeply") from None


def text(value: Any, reason: str) -> str:
    """``value`` if it is text, and valid Unicode.

    Args:
        value: of any JSON type.
        reason: of the refusal where it is no text.

    Raises:
        BadRecord: it is not.
    """
    if not isinstance(value, str):
        raise BadRecord(reason)
    _check_unicode(value)
    return value


def plain(value: Any) -> Any:
    """``value`` if all text in it, keys included, is valid Unicode, and it is not nested deeply.

    Raises:
        BadRecord: it is not.
    """
    level = [value]
    for _ in range(_MAX_DEPTH):
        if not level:
            return value
        level = [inner for outer in level for inner in _inside(outer)]
    raise BadRecord("JSON nested too deeply")


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, str):
        _check_unicode(value)
    elif isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _check_unicode(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:  # "\ud800" is fine JSON and yet no text
        raise BadRecord("text is not valid Unicode") from None


def _load(line: bytes) -> Any:
    try:
        return from_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise BadRecord("text is not valid Unicode") from None
    except ValueError:
        raise BadRecord("invalid JSON") from None
