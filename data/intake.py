"""What a stream has taken in: windows, in their order, and what became of their conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from data.accounting import Accounting, BadLimit
from data.errors import DataError


@dataclass(slots=True)
class Window:
    """A whole window, or what there is to say about it.

    Attributes:
        number: in the order of the run.
        items: samples or packs, or what stands for them.
        accounting: of its conversations.
        fewest_rows: a lower bound on the rows that its samples need; 0 where nobody packs ahead.
        refusal: why the run cannot go on, if one of its conversations may not be used.
    """

    number: int
    items: Sequence[Any]
    accounting: Accounting = field(default_factory=Accounting)
    fewest_rows: int = 0
    refusal: str | None = None


@dataclass
class Intake:
    """Counts over the windows that were taken in.

    Attributes:
        limit: how much of a pass may be of no use.
        accounting: of every conversation in them.
        rows: packed rows in them.
        fewest_rows: a lower bound on the rows that these windows need, by any packer.
        fruitless: conversations read since the last one that could be used.
    """

    limit: BadLimit
    accounting: Accounting = field(default_factory=Accounting)
    rows: int = 0
    fewest_rows: int = 0
    fruitless: int = 0

    def take(self, window: Window) -> None:
        """Count a window.

        Raises:
            DataError: one of its conversations may not be used, or too many cannot.
        """
        if window.refusal:
            raise DataError(window.refusal)
        self.accounting.merge(window.accounting)
        self.limit.check(self.accounting)
        self.rows += len(window.items) if window.fewest_rows else 0
        self.fewest_rows += window.fewest_rows
        self.fruitless = 0 if window.items else self.fruitless + window.accounting.read
        if self.fruitless >= self.limit.size:
            raise DataError(
                f"none of the {self.limit.size:,} conversations can be used: "
                f"{self.accounting.describe()}. Look at the lines named, or change "
                "data.overlong or packing.capacity"
            )
