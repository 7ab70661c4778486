"""Several data sets of the user's own, each with a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from data.errors import show
from data.sources.files import StoredSource
from data.sources.sets import SetSettings


@dataclass(frozen=True, kw_only=True)
class MixtureSource(StoredSource):
    """Several data sets.

    A weight is how often each conversation of a set comes in an epoch: with 2 each comes twice,
    with one half a half of them does, and the others in the next epoch.

    Attributes:
        sets: for each a mapping with ``path``, and perhaps ``weight``, ``format``, ``columns`` and
            ``split``; or only its path.
    """

    sets: Any

    def training_sets(self) -> list[SetSettings]:
        """Every set."""
        sets = [self.sets] if isinstance(self.sets, str | dict) else self.sets
        if not isinstance(sets, list) or not sets:
            raise ValueError(
                f"data.sets={show(sets)}: must be a list, [{{path: a.jsonl, weight: 2}}, b.jsonl]"
            )
        return [SetSettings.of(entry, number) for number, entry in enumerate(sets)]
