"""ShareGPT: ``{"conversations": [{"from": "human", "value": "..."}, ...]}``.

Beside it there may be ``system`` and ``tools``. The value of a ``function_call`` turn is JSON: one
call, ``{"name": ..., "arguments": ...}``, or a list of them. Turns with ``role`` and ``content``
in place of ``from`` and ``value`` are read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data.conversation import BadRecord, Conversation, Message
from data.formats._turns import call, conversation
from data.formats.base import Format, from_json, text

_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
_CALL = "function_call"


class ShareGPT(Format):
    """See the module."""

    keys = ("conversations", "system", "tools")
    signatures = (frozenset({"conversations"}),)

    def parse(self, record: Mapping[str, Any]) -> Conversation:
        """Read a record."""
        if "conversations" not in record:
            raise BadRecord("no conversations key")
        turns = record["conversations"]
        if turns is None:
            raise BadRecord("conversations is null")
        if not isinstance(turns, list):
            raise BadRecord("conversations is not a list")
        if not turns:
            raise BadRecord("conversations is empty")
        messages = [_message(turn) for turn in turns]
        if record.get("system"):
            if messages[0].role == "system":
                raise BadRecord("two system prompts")
            system = text(record["system"], "system is not a string")
            messages.insert(0, Message(role="system", content=system))
        return conversation(messages, record)


def _message(turn: Any) -> Message:
    if not isinstance(turn, dict):
        raise BadRecord("a turn is not an object")
    speaker = turn.get("from", turn.get("role"))
    value = text(turn.get("value", turn.get("content")), "value is not a string")
    if speaker == _CALL:
        return Message(role="assistant", content="", extra={"tool_calls": _calls(value)})
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise BadRecord("unknown speaker")
    return Message(role=_ROLES[speaker], content=value)


def _calls(value: str) -> list[dict[str, Any]]:
    try:
        calls = from_json(value)
    except ValueError:
        raise BadRecord("a function call is not JSON") from None
    if isinstance(calls, dict):
        calls = [calls]
    if not isinstance(calls, list) or not calls:
        raise BadRecord("a function call names no function")
    return [call(function) for function in calls]
