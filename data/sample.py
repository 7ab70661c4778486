"""One tokenised conversation: what packers measure and rows are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """A tokenised conversation of ``n`` tokens.

    Numpy, not torch: samples cross process boundaries, and a torch tensor would take one open
    file descriptor each.

    Attributes:
        tokens: int32 ``[n]``.
        targets: bool ``[n]``; is this token to be predicted? Never the first: nothing precedes it.
        source_id: where the conversation came from, ``file:line`` for JSONL.
        truncated_tokens: how many tokens were cut off its end to fit the capacity.
        rewritten: its layout left out some of what the conversation says.
    """

    tokens: npt.NDArray[np.int32]
    targets: npt.NDArray[np.bool_]
    source_id: str
    truncated_tokens: int = 0
    rewritten: bool = False

    def __post_init__(self) -> None:
        tokens = np.asarray(self.tokens, dtype=np.int32)
        targets = np.asarray(self.targets, dtype=np.bool_)
        if tokens.ndim != 1 or tokens.shape != targets.shape:
            raise ValueError(
                f"{self.source_id}: tokens and targets must be one-dimensional and equally long, "
                f"got shapes {tokens.shape} and {targets.shape}"
            )
        if tokens.size == 0:
            raise ValueError(f"{self.source_id}: a sample needs at least one token")
        if targets[0]:
            raise ValueError(f"{self.source_id}: the first token cannot be a target")
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "targets", targets)

    def __len__(self) -> int:
        return int(self.tokens.size)

    @property
    def loss_tokens(self) -> int:
        """How many positions count in the loss."""
        return int(np.count_nonzero(self.targets))
