"""A conversation to tokens and targets, and what happens when it is too long.

    line -> formats.parse_record -> messages -> render -> tokens [n], targets [n] -> Sample

Each message becomes ``role id, content, end id``. For user "hi", assistant "yo":

    tokens   <|user|> h i <|end|> <|assistant|> y o <|end|>
    targets     -     - -    -         -        x x    x
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from data.errors import DataError
from data.formats import BadRecord, Message, parse_record
from data.sample import Sample
from data.tokenizers import Tokenizer


class Overlong(Enum):
    """What to do with a conversation of more tokens than the capacity."""

    DROP = "drop"
    TRUNCATE = "truncate"
    ERROR = "error"
    # OmegaConf looks members up by name: these aliases are what people type after data.overlong=.
    drop = "drop"
    truncate = "truncate"
    error = "error"


@dataclass(frozen=True)
class Dropped:
    """A conversation that is not used, and why.

    Attributes:
        source_id: where it came from, ``file:line`` for JSONL.
        reason: a short phrase, the same for every conversation dropped for this reason.
        tokens: how many tokens it has; 0 when it was never tokenised.
    """

    source_id: str
    reason: str
    tokens: int = 0


def render(
    messages: Sequence[Message], tokenizer: Tokenizer
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Lay a conversation out as tokens.

    Targets are set by position, never by comparing ids, so content that happens to hold the end
    id, or a tokenizer whose pad and end ids are equal, changes nothing.

    Args:
        messages: the turns, in order.
        tokenizer: encodes the contents and knows the role and end ids.

    Returns:
        ``tokens`` int32 ``[n]`` and ``targets`` bool ``[n]``: true for the content and the end
        token of the assistant's messages, false for everything else, role tokens included.
    """
    contents = [tokenizer.encode(message.content) for message in messages]
    n = sum(content.size + 2 for content in contents)
    tokens = np.empty(n, dtype=np.int32)
    targets = np.zeros(n, dtype=np.bool_)
    start = 0
    for message, content in zip(messages, contents, strict=True):
        end = start + 1 + content.size
        tokens[start] = tokenizer.role_id(message.role)
        tokens[start + 1 : end] = content
        tokens[end] = tokenizer.end_id
        targets[start + 1 : end + 1] = message.role == "assistant"
        start = end + 1
    return tokens, targets


@dataclass(frozen=True)
class ConversationEncoder:
    """Turns a raw line into a sample that fits the capacity, or says why it is dropped.

    Attributes:
        tokenizer: encodes the contents.
        capacity: the most tokens a sample may have.
        overlong: what to do with a longer conversation. What is cut off is counted and never
            becomes a sample of its own: it would be an answer without its question.
    """

    tokenizer: Tokenizer
    capacity: int
    overlong: Overlong

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"packing.capacity={self.capacity} must be at least 1")
        # A plain "drop" compares unequal to the member and would be taken for truncation.
        object.__setattr__(self, "overlong", Overlong(self.overlong))

    def __call__(self, line: bytes, source_id: str) -> Sample | Dropped:
        """Encode one line.

        Args:
            line: raw JSON of one conversation.
            source_id: ``file:line``, carried along for reports.

        Raises:
            DataError: it is over the capacity and ``overlong`` is ``ERROR``.
        """
        try:
            messages = parse_record(line)
        except BadRecord as bad:
            return Dropped(source_id, bad.reason)
        tokens, targets = render(messages, self.tokenizer)
        if tokens.size <= self.capacity:
            return Sample(tokens=tokens, targets=targets, source_id=source_id)
        return self._fit(tokens, targets, source_id)

    def _fit(
        self, tokens: npt.NDArray[np.int32], targets: npt.NDArray[np.bool_], source_id: str
    ) -> Sample | Dropped:
        if self.overlong is Overlong.ERROR:
            raise DataError(
                f"{source_id}: this conversation has {tokens.size:,} tokens, over the capacity of "
                f"{self.capacity:,}. Raise packing.capacity to {tokens.size} or more, or set "
                "data.overlong=truncate or data.overlong=drop"
            )
        if self.overlong is Overlong.DROP:
            return Dropped(source_id, "over the capacity", tokens.size)
        if not targets[: self.capacity].any():
            return Dropped(source_id, "no answer within the capacity", tokens.size)
        return Sample(
            # Copies, so that the sample does not keep the whole conversation in memory.
            tokens=tokens[: self.capacity].copy(),
            targets=targets[: self.capacity].copy(),
            source_id=source_id,
            truncated_tokens=tokens.size - self.capacity,
        )
