"""What this package raises when the user is at fault, and how settings and values are written."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class DataError(Exception):
    """The data cannot be used as asked; the message is complete and meant for the user."""


def show(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {show(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(show, value)) + "]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    by_lower = {k.lower(): k for k in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def unknown_key(key: str, value: Any, known: Iterable[str]) -> str:
    """What a user is told about a key that does not exist."""
    known = sorted(known)
    prefix, _, name = key.rpartition(".")
    guess = closest(name, known)
    hint = f" Did you mean {prefix}{'.' if prefix else ''}{guess}?" if guess else ""
    where = f"in {prefix}" if prefix else "at the top level"
    keys = ", ".join(known) or "none"
    return f"{key}={show(value)}: there is no such key.{hint} Keys {where}: {keys}"


def first_line(error: BaseException) -> str:
    """What an error says, without the details that follow; its class where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
