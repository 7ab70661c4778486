"""A raw line to a sample, or why there is none; what happens to a conversation that is too long.

line -> Parser -> Conversation -> Tokenizer.render -> tokens [n], targets [n] -> Sample
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from data.conversation import BadRecord, TokenRecord
from data.errors import DataError
from data.formats import Parser
from data.sample import Sample
from data.targets import LossOn
from data.tokenizers import Rendered, Tokenizer


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


@dataclass(frozen=True)
class ConversationEncoder:
    """Turns a raw line into a sample that fits the capacity, or says why it is dropped.

    Attributes:
        parser: from line to conversation.
        tokenizer: lays conversations out.
        capacity: the most tokens a sample may have.
        overlong: what to do with a longer conversation. What is cut off is counted and never
            becomes a sample of its own: it would be an answer without its question.
        loss_on: what is to be predicted of a conversation. Records that were tokenised before they
            came here say that themselves.
    """

    parser: Parser
    tokenizer: Tokenizer
    capacity: int
    overlong: Overlong = Overlong.TRUNCATE
    loss_on: LossOn = LossOn.ASSISTANT

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"packing.capacity={self.capacity}: must be at least 1")
        # A plain "drop" compares unequal to the member and would be taken for truncation.
        object.__setattr__(self, "overlong", Overlong(self.overlong))
        object.__setattr__(self, "loss_on", LossOn(self.loss_on))

    def __call__(self, line: bytes, source_id: str) -> Sample | Dropped:
        """Encode one line.

        Args:
            line: raw JSON of one conversation.
            source_id: ``file:line``, carried along for reports.

        Raises:
            DataError: it is over the capacity and ``overlong`` is ``ERROR``, or the chat template
                does what no template may.
        """
        try:
            rendered = self.render(line)
        except BadRecord as bad:
            return Dropped(source_id, bad.reason)
        tokens, targets = rendered.tokens, rendered.targets
        if not targets.any():
            return Dropped(source_id, "no token is to be predicted", tokens.size)
        if tokens.size > self.capacity:
            return self._fit(rendered, source_id)
        return Sample(
            tokens=tokens, targets=targets, source_id=source_id, rewritten=rendered.rewritten
        )

    def render(self, line: bytes) -> Rendered:
        """All tokens of one line, however many.

        Raises:
            BadRecord: it is no conversation, or the tokenizer's layout has no place for it.
        """
        parsed = self.parser(line)
        if not isinstance(parsed, TokenRecord):
            return self.tokenizer.render(parsed, self.loss_on)
        tokens, targets = parsed.tokens, parsed.targets.copy()
        if tokens.size and not (0 <= tokens.min() and tokens.max() < self.tokenizer.vocab_size):
            raise BadRecord("a token is not in the tokenizer's vocabulary")
        targets[:1] = False  # nothing precedes it
        return Rendered(tokens=tokens.astype(np.int32), targets=targets)

    def _fit(self, rendered: Rendered, source_id: str) -> Sample | Dropped:
        tokens, targets = rendered.tokens, rendered.targets
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
            tokens=_head(tokens, self.capacity),
            targets=_head(targets, self.capacity),
            source_id=source_id,
            truncated_tokens=tokens.size - self.capacity,
            rewritten=rendered.rewritten,
        )


def _head[T: np.generic](array: npt.NDArray[T], size: int) -> npt.NDArray[T]:
    # A copy, so that the sample does not keep the whole conversation in memory.
    return array[:size].copy()
