"""What a record says, whatever its format: turns of a conversation, or tokens that are ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, kw_only=True)
class Message:
    """One turn.

    Attributes:
        role: one of ``ROLES``.
        content: valid Unicode; may be empty.
        extra: what else a chat template may use, as it stood in the record: ``tool_calls``,
            ``tool_call_id``, ``name``, ``reasoning_content``.
    """

    role: str
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_template(self) -> dict[str, Any]:
        """The turn as chat templates expect it."""
        return {"role": self.role, "content": self.content, **self.extra}


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Turns, the last of which may be anyone's, and the tools that were on offer.

    Attributes:
        messages: at least one is the assistant's.
        tools: descriptions of functions, as JSON schema; empty without tools.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenRecord:
    """A record that was tokenised before it came here.

    Attributes:
        tokens: int64 ``[n]``, not yet held against a vocabulary.
        targets: bool ``[n]``.
    """

    tokens: npt.NDArray[np.int64]
    targets: npt.NDArray[np.bool_]


Parsed = Conversation | TokenRecord


class BadRecord(Exception):
    """A record that is no conversation; ``reason`` is a short phrase, the same for every such one.

    It is a key to count by, so it never holds anything of the record itself.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
