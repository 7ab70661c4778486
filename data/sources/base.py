"""What every source of conversations has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from data.chat import Overlong
from data.errors import DataError
from data.formats import check_format
from data.jsonl import Records
from data.targets import LossOn

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
        format: how a record says a conversation: a module of ``data.formats``, one of your own by
            its full name, or ``auto``: told by the record's keys.
        columns: the data's own key for each of the format's keys that it calls something else;
            None: all are called as the format calls them.
        tokenizer: a directory, hub id or GGUF file, or ``bytes``, which is built in; None: that of
            the model the weights come from, else ``bytes``.
        chat_template: a Jinja file to use instead of the tokenizer's own template; None for that.
        template_args: further variables of the template; None: there are none.
        loss_on: which turns are to be predicted.
        overlong: what to do with a conversation of more tokens than the capacity.
        max_bad_fraction: a run stops once it is certain that more than this share of a pass over
            the data cannot be used, ``[0, 1]``; None: never. What ``overlong`` drops is not bad.
        val_fraction: share of the conversations held out for validation, ``[0, 1)``.
        limit: use only the first so many conversations, before the split; None for all.
        shuffle: draw the training conversations in random order.
        num_workers: processes that load data; 0 loads in the training process.
    """

    format: str = "auto"
    columns: dict[str, str] | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    template_args: dict[str, Any] | None = None
    loss_on: LossOn = LossOn.ASSISTANT
    overlong: Overlong = Overlong.TRUNCATE
    max_bad_fraction: float | None = 0.5
    val_fraction: float = 0.05
    limit: int | None = None
    shuffle: bool = True
    num_workers: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "overlong", _member(Overlong, "overlong", self.overlong))
        object.__setattr__(self, "loss_on", _member(LossOn, "loss_on", self.loss_on))
        try:
            check_format(self.format, self.columns or {})
        except DataError as error:
            raise ValueError(str(error)) from error
        if not 0 <= self.val_fraction < 1:
            raise ValueError(
                f"data.val_fraction={self.val_fraction}: must be at least 0 and below 1"
            )
        if self.max_bad_fraction is not None and not 0 <= self.max_bad_fraction <= 1:
            raise ValueError(
                f"data.max_bad_fraction={self.max_bad_fraction}: must be from 0 to 1, or null to "
                "go on whatever the data holds"
            )
        if self.limit is not None and self.limit < 2:
            raise ValueError(
                f"data.limit={self.limit}: must be at least 2, to have one conversation to train "
                "on and one to validate on, or null for all"
            )
        if self.num_workers < 0:
            raise ValueError(f"data.num_workers={self.num_workers}: must be at least 0")

    @abstractmethod
    def prepare(self) -> PreparedData:
        """Find the conversations, fetching and converting them first where that is needed.

        Every process of a run calls this, several at once on one machine.

        Raises:
            DataError: the data cannot be used; the message names the setting to change.
        """


def _member[E: Enum](choices: type[E], name: str, value: E | str) -> E:
    try:
        return choices(value)
    except ValueError:
        allowed = ", ".join(str(choice.value) for choice in choices)
        raise ValueError(f"data.{name}={value}: must be one of {allowed}") from None
