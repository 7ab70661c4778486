"""How processes that read one stream tell each other what they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Exchange(Protocol):
    """The processes of a run, which all call the same methods in the same order.

    Attributes:
        rank: of this process, from 0.
        size: how many there are.
    """

    @property
    def rank(self) -> int:
        """Of this process, from 0."""

    @property
    def size(self) -> int:
        """How many processes there are."""

    def gather(self, mine: Any) -> list[Any]:
        """What every process has, in the order of their ranks."""

    def deliver(self, parcels: Sequence[Any]) -> list[Any]:
        """Send each process its parcel, by rank; returns what each has sent here, by rank."""


class Alone:
    """One process: it is told what it knows."""

    rank = 0
    size = 1

    def gather(self, mine: Any) -> list[Any]:
        """What it has itself."""
        return [mine]

    def deliver(self, parcels: Sequence[Any]) -> list[Any]:
        """Its own parcel."""
        assert len(parcels) == 1
        return list(parcels)
