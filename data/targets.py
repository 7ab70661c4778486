"""Which tokens of a conversation are to be predicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

from data.conversation import Conversation

type Span = tuple[int, int]


class LossOn(Enum):
    """Whose tokens count in the loss.

    ``ASSISTANT``: of every turn of the assistant what it says and the token that ends it. ``LAST``:
    of its last turn. ``ALL``: every token but the first, what opens turns included.
    """

    ASSISTANT = "assistant"
    LAST = "last"
    ALL = "all"
    # OmegaConf looks members up by name: these aliases are what people type after data.loss_on=.
    assistant = "assistant"
    last = "last"
    all = "all"


def wanted_turns(conversation: Conversation, loss_on: LossOn) -> list[int]:
    """The messages that count in the loss, as indices; of ``ALL`` the assistant's."""
    turns = [i for i, m in enumerate(conversation.messages) if m.role == "assistant"]
    return turns[-1:] if loss_on is LossOn.LAST else turns


def token_targets(
    offsets: Sequence[Span], spans: Iterable[Span], foreign: Iterable[Span]
) -> npt.NDArray[np.bool_]:
    """From characters that are to be predicted to tokens.

    A token that holds a character of a span is a target. So one that a merge across the seam has
    made of the end of a turn's header and the start of its answer is a target: it holds text of the
    answer, which no other token would teach, and the space in front of a word is the usual case.
    One that also holds something another speaker said is none.

    Args:
        offsets: the characters ``[start, end)`` of each token, in order.
        spans: the characters that are to be predicted.
        foreign: the characters that others than the assistant have said.

    Returns:
        bool ``[len(offsets)]``.
    """
    bounds = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    return _touching(bounds, spans) & ~_touching(bounds, foreign)


def _touching(bounds: npt.NDArray[np.int64], spans: Iterable[Span]) -> npt.NDArray[np.bool_]:
    """The tokens that hold a character of a span.

    One of no character, as the space that some tokenizers put in front of a text, goes with the
    character behind it.
    """
    touches = np.zeros(len(bounds), dtype=np.bool_)
    wide = np.array([span for span in spans if span[0] < span[1]], dtype=np.int64).reshape(-1, 2)
    ends = np.where(bounds[:, 0] == bounds[:, 1], bounds[:, 1] + 1, bounds[:, 1])
    first = np.searchsorted(np.maximum.accumulate(ends), wide[:, 0], side="right")
    last = np.searchsorted(bounds[:, 0], wide[:, 1], side="left")
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        touches[begin:end] = True
    return touches
