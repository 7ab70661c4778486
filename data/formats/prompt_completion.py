"""A prompt and its completion: ``{"prompt": "...", "completion": "..."}``.

Each is text, the user's turn and the assistant's, or a list of messages, as in :mod:`messages`.
Other names for the two keys are a matter of ``data.columns``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data.conversation import BadRecord, Conversation, Message
from data.formats._turns import conversation, messages
from data.formats.base import Format, text


class PromptCompletion(Format):
    """See the module."""

    keys = ("prompt", "completion", "tools")
    signatures = (frozenset({"prompt", "completion"}),)

    def parse(self, record: Mapping[str, Any]) -> Conversation:
        """Read a record."""
        prompt = _turns(record, "prompt", role="user")
        return conversation([*prompt, *_turns(record, "completion", role="assistant")], record)


def _turns(record: Mapping[str, Any], key: str, *, role: str) -> list[Message]:
    if key not in record:
        raise BadRecord(f"no {key} key")
    if isinstance(record[key], list):
        return messages(record[key], key)
    return [Message(role=role, content=text(record[key], f"{key} is neither text nor messages"))]
