"""One raw JSONL line to a conversation, or the reason why it is none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from data.tokenizers import ROLES

# Numbers are never used, and float takes any number of digits where int refuses above 4,300.
_DECODER = json.JSONDecoder(parse_int=float)


@dataclass(frozen=True)
class Message:
    """One turn: ``role`` is one of ``ROLES``, ``content`` is valid Unicode and may be empty."""

    role: str
    content: str


class BadRecord(Exception):
    """A line that is no conversation; ``reason`` is a short phrase, the same for every such line.

    It is a key to count by, so it never holds anything of the line itself.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def parse_record(line: bytes) -> list[Message]:
    """Read ``{"messages": [{"role": ..., "content": ...}, ...]}``; other keys are ignored.

    A byte order mark in front is tolerated: editors put one at the start of a file.

    Raises:
        BadRecord: the line is no usable conversation.
    """
    record = _load(line)
    if not isinstance(record, dict):
        raise BadRecord("not a JSON object")
    if "messages" not in record:
        raise BadRecord("no messages key")
    messages = record["messages"]
    if messages is None:
        raise BadRecord("messages is null")
    if not isinstance(messages, list):
        raise BadRecord("messages is not a list")
    if not messages:
        raise BadRecord("messages is empty")
    parsed = [_message(message) for message in messages]
    if not any(message.role == "assistant" for message in parsed):
        raise BadRecord("no assistant turn")
    return parsed


def _load(line: bytes) -> Any:
    try:
        return _DECODER.decode(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise BadRecord("text is not valid Unicode") from None
    except ValueError:
        raise BadRecord("invalid JSON") from None
    except RecursionError:
        raise BadRecord("JSON nested too deeply") from None


def _message(message: Any) -> Message:
    if not isinstance(message, dict):
        raise BadRecord("a message is not an object")
    if "role" not in message:
        raise BadRecord("a message has no role")
    role, content = message["role"], message.get("content")
    if not isinstance(role, str) or role not in ROLES:
        raise BadRecord("unknown role")
    if not isinstance(content, str):
        raise BadRecord("content is not a string")
    try:
        content.encode()
    except UnicodeEncodeError:  # "\ud800" is fine JSON and yet no text
        raise BadRecord("text is not valid Unicode") from None
    return Message(role, content)
