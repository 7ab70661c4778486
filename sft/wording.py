"""How settings are spoken of: what a user is told about a key, a value, a type. No torch here."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from omegaconf.errors import OmegaConfBaseException


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    by_lower = {k.lower(): k for k in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def first_line(error: OmegaConfBaseException) -> str:
    """What OmegaConf says, without the lines on its own types that follow."""
    return str(error).strip().partition("\n")[0]


def unknown_key(key: str, value: Any, known: Iterable[str]) -> str:
    """What a user is told about a key that does not exist."""
    known = sorted(known)
    prefix, _, name = key.rpartition(".")
    guess = closest(name, known)
    hint = f" Did you mean {prefix}{'.' if prefix else ''}{guess}?" if guess else ""
    where = f"in {prefix}" if prefix else "at the top level"
    keys = ", ".join(known) or "none"
    return f"{key}={show(value)}: there is no such key.{hint} Keys {where}: {keys}"


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows."""
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if is_union else (hint,)


_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list[str]: "a list such as [a, b]",
    type(None): "null",
}


def type_name(hint: Any) -> str:
    """What a value of a type is called."""
    return " or ".join(map(_kind_name, alternatives(hint)))


def _kind_name(kind: Any) -> str:
    if kind is Any:  # what OmegaConf has no type for, and the component checks itself
        return "text or a list"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    return _TYPE_NAMES.get(kind, getattr(kind, "__name__", "?"))


def show(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {show(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(show, value)) + "]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def with_key(message: str, key: str) -> str:
    """A component checks itself without knowing which key it stands under."""
    return message if message.startswith(f"{key}.") else f"{key}.{message}"
