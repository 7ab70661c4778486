"""What the rest of the package needs of a tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from data.conversation import BadRecord, Conversation
from data.targets import LossOn


@dataclass(frozen=True, kw_only=True, eq=False)
class Rendered:
    """A conversation as tokens.

    Attributes:
        tokens: int32 ``[n]``.
        targets: bool ``[n]``; is this token to be predicted? Never the first.
        rewritten: the layout left out some of what the conversation says, as templates do that
            keep the thinking of the last turn only.
    """

    tokens: npt.NDArray[np.int32]
    targets: npt.NDArray[np.bool_]
    rewritten: bool = False


class Unrenderable(BadRecord):
    """A conversation that the tokenizer's layout has no place for.

    Attributes:
        detail: what is said about this one, for a person who asks.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


class Tokenizer(Protocol):
    """Lays conversations out as tokens. Can be pickled, and used after a fork."""

    @property
    def name(self) -> str:
        """What ``data.tokenizer`` calls it."""

    @property
    def vocab_size(self) -> int:
        """Ids are in ``[0, vocab_size)``."""

    @property
    def pad_id(self) -> int:
        """Fills slots that hold no token. May end turns too: nothing is masked by id."""

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that no text has: they mark where turns begin and end, and padding."""

    def render(self, conversation: Conversation, loss_on: LossOn) -> Rendered:
        """Lay a conversation out.

        Raises:
            Unrenderable: the layout has no place for it.
        """

    def decode(self, ids: npt.ArrayLike) -> str:
        """Return readable text of ``ids`` ``[n]``, special tokens by their names."""

    def token_text(self, ids: npt.ArrayLike) -> list[str]:
        """Return the text of each token; joined, that of all.

        A character of several tokens stands at the last of them.
        """

    def save(self, directory: Path) -> None:
        """Write the files that ``transformers`` loads, with the template trained with.

        Raises:
            DataError: there is no such form of this tokenizer.
        """
