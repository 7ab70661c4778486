"""Parts that several formats are made of: turns, tools, and the conversation they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from data.conversation import ROLES, BadRecord, Conversation, Message
from data.formats.base import from_json, plain, text

_ROLES = {**{role: role for role in ROLES}, "developer": "system", "function": "tool"}
_TEXT_EXTRAS = ("tool_call_id", "name", "reasoning_content")


def conversation(messages: Iterable[Message], record: Mapping[str, Any]) -> Conversation:
    """Put turns together, with the record's ``tools``.

    Raises:
        BadRecord: no turn is the assistant's, or the tools are of no use.
    """
    turns = tuple(messages)
    if not any(message.role == "assistant" for message in turns):
        raise BadRecord("no assistant turn")
    return Conversation(messages=turns, tools=_tools(record.get("tools")))


def message(turn: Any) -> Message:
    """One turn as OpenAI's API has it: ``role``, ``content``, and what belongs to tools.

    Raises:
        BadRecord: it is none.
    """
    if not isinstance(turn, dict):
        raise BadRecord("a message is not an object")
    if "role" not in turn:
        raise BadRecord("a message has no role")
    name = turn["role"]
    if not isinstance(name, str) or name not in _ROLES:
        raise BadRecord("unknown role")
    extra = _extra(turn)
    content = turn.get("content")
    if content is None and "tool_calls" in extra:
        content = ""
    return Message(role=_ROLES[name], content=_content(content), extra=extra)


def messages(turns: Any, key: str) -> list[Message]:
    """A list of turns.

    Args:
        turns: the value of the record's ``key``.
        key: for the reason.

    Raises:
        BadRecord: it is none, or empty.
    """
    if turns is None:
        raise BadRecord(f"{key} is null")
    if not isinstance(turns, list):
        raise BadRecord(f"{key} is not a list")
    if not turns:
        raise BadRecord(f"{key} is empty")
    return [message(turn) for turn in turns]


def call(function: Any) -> dict[str, Any]:
    """A function call as an entry of ``tool_calls``.

    Raises:
        BadRecord: it names no function.
    """
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRecord("a function call names no function")
    return {"type": "function", "function": plain(function)}


def _extra(turn: Mapping[str, Any]) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if turn.get("tool_calls"):
        extra["tool_calls"] = plain(_objects(turn["tool_calls"], "tool_calls"))
    elif turn.get("function_call"):  # how calls were written before there were tool_calls
        extra["tool_calls"] = [call(turn["function_call"])]
    for key in _TEXT_EXTRAS:
        if turn.get(key) is not None:
            extra[key] = text(turn[key], f"{key} is not a string")
    return extra


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(_part(part) for part in content)
    return text(content, "content is not a string")


def _part(part: Any) -> str:
    if isinstance(part, dict):
        if part.get("type", "text") != "text":
            raise BadRecord("content has a part that is not text")
        part = part.get("text")
    return text(part, "content has a part that is not text")


def _tools(tools: Any) -> tuple[Mapping[str, Any], ...]:
    if isinstance(tools, str) and tools.strip():
        try:
            tools = from_json(tools)
        except ValueError:
            raise BadRecord("tools is not a list of objects") from None
    if not tools:
        return ()
    return tuple(plain(_objects(tools, "tools")))


def _objects(value: Any, key: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise BadRecord(f"{key} is not a list of objects")
    return value
