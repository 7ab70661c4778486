"""Alpaca: ``{"instruction": "...", "input": "...", "output": "..."}``.

The user's turn is the instruction, a blank line, and the input where there is one. ``system``, and
``history`` with earlier turns as ``[[question, answer], ...]``, may stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from data.conversation import BadRecord, Conversation, Message
from data.formats._turns import conversation
from data.formats.base import Format, text


class Alpaca(Format):
    """See the module."""

    keys = ("instruction", "input", "output", "system", "history", "tools")
    signatures = (frozenset({"instruction", "output"}),)

    def parse(self, record: Mapping[str, Any]) -> Conversation:
        """Read a record."""
        return conversation(_messages(record), record)


def _messages(record: Mapping[str, Any]) -> Iterator[Message]:
    if record.get("system"):
        yield Message(role="system", content=text(record["system"], "system is not a string"))
    history = record.get("history") or []
    if not isinstance(history, list):
        raise BadRecord("history is not a list of pairs")
    for pair in history:
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRecord("history is not a list of pairs")
        for role, said in zip(("user", "assistant"), pair, strict=True):
            yield Message(role=role, content=text(said, "history holds something that is no text"))
    question = _required(record, "instruction")
    if record.get("input"):
        question += "\n\n" + text(record["input"], "input is not a string")
    yield Message(role="user", content=question)
    yield Message(role="assistant", content=_required(record, "output"))


def _required(record: Mapping[str, Any], key: str) -> str:
    if key not in record:
        raise BadRecord(f"no {key} key")
    return text(record[key], f"{key} is not a string")
