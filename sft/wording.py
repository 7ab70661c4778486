"""How settings are spoken of: what a user is told about a key, a value, a type. No torch here."""

from __future__ import annotations

import types
import typing
from enum import Enum
from typing import Any

from data.errors import closest, first_line, show, unknown_key

__all__ = [
    "alternatives",
    "closest",
    "first_line",
    "show",
    "type_name",
    "unknown_key",
    "with_key",
]


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
    if typing.get_origin(kind) is dict:
        return "a mapping such as {a: b}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    return _TYPE_NAMES.get(kind, getattr(kind, "__name__", "?"))


def with_key(message: str, key: str) -> str:
    """A component checks itself without knowing which key it stands under."""
    return message if message.startswith(f"{key}.") else f"{key}.{message}"
