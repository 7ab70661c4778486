"""What every source of conversations has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from data.chat import Overlong
from data.jsonl import Records

Counts = dict[str, int | dict[str, int]]


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedData:
    """Conversations ready to be read.

    Attributes:
        train: rows to train on.
        val: rows to validate on; may be empty.
        notes: counts from the preparation, for the run's record.
        name: short, for people.
    """

    train: Records
    val: Records
    name: str
    notes: Counts = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataSource(ABC):
    """A source and its settings. The fields are the schema of the ``data`` group.

    Attributes:
        tokenizer: how text becomes ids; ``bytes`` is built in.
        overlong: what to do with a conversation of more tokens than the capacity.
        val_fraction: share of the conversations held out for validation, ``[0, 1)``.
        limit: use only the first so many conversations, before the split; None for all.
        shuffle: draw the training conversations in random order.
        num_workers: processes that load data; 0 loads in the training process.
    """

    tokenizer: str = "bytes"
    overlong: Overlong = Overlong.TRUNCATE
    val_fraction: float = 0.05
    limit: int | None = None
    shuffle: bool = True
    num_workers: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "overlong", _overlong(self.overlong))
        if not 0 <= self.val_fraction < 1:
            raise ValueError(
                f"data.val_fraction={self.val_fraction} must be at least 0 and below 1"
            )
        if self.limit is not None and self.limit < 2:
            raise ValueError(
                f"data.limit={self.limit} must be at least 2, to have one conversation to train on "
                "and one to validate on, or null for all"
            )
        if self.num_workers < 0:
            raise ValueError(f"data.num_workers={self.num_workers} must be at least 0")

    @abstractmethod
    def prepare(self) -> PreparedData:
        """Find the conversations, fetching and converting them first where that is needed.

        Every process of a run calls this, several at once on one machine.

        Raises:
            DataError: the data cannot be used; the message names the setting to change.
        """


def _overlong(value: Overlong | str) -> Overlong:
    try:
        return Overlong(value)
    except ValueError:
        allowed = ", ".join(choice.value for choice in Overlong)
        raise ValueError(f"data.overlong={value!r} is unknown; allowed: {allowed}") from None
