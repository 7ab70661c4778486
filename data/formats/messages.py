"""OpenAI's messages: ``{"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}``.

``content`` is text, a list of text parts, which are joined, or null beside ``tool_calls``.
``developer`` is ``system`` and ``function`` is ``tool``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data.conversation import BadRecord, Conversation
from data.formats._turns import conversation, messages
from data.formats.base import Format


class Messages(Format):
    """See the module."""

    keys = ("messages", "tools")
    signatures = (frozenset({"messages"}),)

    def parse(self, record: Mapping[str, Any]) -> Conversation:
        """Read a record."""
        if "messages" not in record:
            raise BadRecord("no messages key")
        return conversation(messages(record["messages"], "messages"), record)
