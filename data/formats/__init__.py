"""Raw records to conversations: which formats there are, and which one a record has.

    line -> Parser -> Conversation | TokenRecord, or BadRecord

A format is a module of this package; there is no list of them.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from data import notes
from data.conversation import BadRecord, Parsed
from data.errors import DataError, first_line, show
from data.formats.base import Format, decode

AUTO = "auto"
_NO_FORMATS = ("base",)


@dataclass(frozen=True)
class Parser:
    """Turns a line into what it says; safe to pickle.

    Attributes:
        format: a module of this package, a module of your own as ``package.module``, or ``auto``:
            each record is of the one format whose keys it has.
        columns: for some of the format's keys, the key that the data has in its place.
    """

    format: str = AUTO
    columns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_format(self.format, self.columns)

    def __call__(self, line: bytes) -> Parsed:
        """Parse one line.

        Args:
            line: JSON of one record; as ``Records.read`` hands it out, with a note or without.

        Raises:
            BadRecord: it is no usable conversation.
        """
        try:
            note, content = notes.split(line)
        except ValueError:
            raise BadRecord("invalid JSON") from None
        if note.damage is not None:
            raise BadRecord(note.damage)
        name, columns = (self.format, self.columns)
        if note.format is not None:
            name, columns = note.format, note.columns
        record = _rename(decode(content), columns)
        return (_detect(record) if name == AUTO else load_format(name)).parse(record)


def check_format(name: str, columns: Mapping[str, str], *, prefix: str = "data.") -> None:
    """Refuse a format or columns that mean nothing.

    Args:
        name: as ``Parser.format``.
        columns: as ``Parser.columns``.
        prefix: of the two keys, for messages.

    Raises:
        DataError: naming the key and what is allowed.
    """
    formats = known_formats().values() if name == AUTO else [load_format(name, prefix=prefix)]
    allowed = sorted({key for found in formats for key in found.keys})
    for key, own in columns.items():
        if key not in allowed:
            raise DataError(
                f"{prefix}columns={show({key: own})}: {key} is no key of "
                f"{'any format' if name == AUTO else f'the format {name}'}; on the left of a colon "
                f"stands one of {', '.join(allowed)}, on the right your data's name for it"
            )
        if not isinstance(own, str):
            raise DataError(
                f"{prefix}columns={show({key: own})}: on the right of a colon stands one key of "
                f"your data's, {{{key}: question}}"
            )


def known_formats() -> dict[str, Format]:
    """Every format of this package by its name, in alphabetical order."""
    return dict(_known())


def is_record(keys: Iterable[str]) -> bool:
    """Whether an object with these keys is a record of a known format."""
    present = frozenset(keys)
    return any(wanted <= present for found in _known().values() for wanted in found.signatures)


@cache
def load_format(name: str, *, prefix: str = "data.") -> Format:
    """The format of that name.

    Raises:
        DataError: there is none.
    """
    if name in _known():
        return _known()[name]
    setting = f"{prefix}format={name}"
    if "." not in name or not all(name.split(".")):
        raise DataError(
            f"{setting}: there is no such format; choose {AUTO}, {', '.join(_known())}, or name a "
            "module of your own, package.module"
        )
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"{setting}: cannot be imported ({error}); a module of your own must be on PYTHONPATH"
        ) from error
    except Exception as error:  # the module is the user's own, and may raise anything
        raise DataError(
            f"{setting}: cannot be imported ({type(error).__name__}: {first_line(error)}); mend "
            "the module"
        ) from error
    return _own_format(module, setting)


def _own_format(module: Any, setting: str) -> Format:
    found = _formats_in(module)
    if len(found) != 1:
        raise DataError(
            f"{setting}: must hold one subclass of data.formats.base.Format, and holds {len(found)}"
        )
    if inspect.isabstract(found[0]):
        raise DataError(f"{setting}: {found[0].__name__} must define parse, and does not")
    if not isinstance(getattr(found[0], "keys", None), tuple | list):
        raise DataError(
            f"{setting}: {found[0].__name__}.keys must be the keys of a record that it reads, "
            "('question', 'answer')"
        )
    return found[0]()


@cache
def _known() -> dict[str, Format]:
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    formats = {}
    for name in names:
        if name.startswith("_") or name in _NO_FORMATS:
            continue
        (found,) = _formats_in(importlib.import_module(f"{__name__}.{name}"))
        formats[name] = found()
    return formats


def _formats_in(module: Any) -> list[type[Format]]:
    return [
        found
        for found in vars(module).values()
        if isinstance(found, type)
        and issubclass(found, Format)
        and found.__module__ == module.__name__
    ]


def _rename(record: dict[str, Any], columns: Mapping[str, str]) -> Mapping[str, Any]:
    if not columns:
        return record
    renamed = {key: value for key, value in record.items() if key not in columns}
    for key, own in columns.items():
        if own in record:
            renamed[key] = record[own]
    return renamed


def _detect(record: Mapping[str, Any]) -> Format:
    # A table has every column in every row: a null says nothing, unless there is nothing else.
    filled = frozenset(key for key, value in record.items() if value is not None)
    fitting = _fitting(filled) or _fitting(frozenset(record))
    if not fitting:
        raise BadRecord("no format has these keys")
    if len(fitting) > 1:
        raise BadRecord("more than one format has these keys")
    return fitting[0]


def _fitting(keys: frozenset[str]) -> list[Format]:
    return [f for f in _known().values() if any(wanted <= keys for wanted in f.signatures)]
