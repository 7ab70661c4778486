"""What became of every conversation: each one that is read is kept, or dropped for a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from data.chat import Dropped
from data.errors import DataError
from data.sample import Sample

_EXAMPLES_KEPT = 5
_EXAMPLES_SHOWN = 3


@dataclass
class Accounting:
    """Counts of outcomes; ``read == kept + dropped_total`` always.

    Attributes:
        read: conversations seen.
        kept: conversations that became a sample.
        bad: of those dropped, the records that are no usable conversation whatever the settings.
        dropped: conversations per reason.
        examples: the first five distinct ``file:line`` per reason.
        truncated_samples: samples whose end was cut off.
        truncated_tokens: tokens cut off, over all samples.
        rewritten_samples: samples whose chat template left out some of what they say.
        real_tokens: tokens in the kept samples.
        loss_tokens: tokens of the kept samples that are to be predicted.
    """

    read: int = 0
    kept: int = 0
    bad: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    truncated_samples: int = 0
    truncated_tokens: int = 0
    rewritten_samples: int = 0
    real_tokens: int = 0
    loss_tokens: int = 0

    @property
    def dropped_total(self) -> int:
        """Conversations dropped for any reason."""
        return sum(self.dropped.values())

    def add(self, outcome: Sample | Dropped) -> None:
        """Count one conversation."""
        self.read += 1
        if isinstance(outcome, Dropped):
            self.bad += outcome.tokens == 0  # it was never tokenised
            self._drop(outcome.reason, 1, [outcome.source_id])
            return
        self.kept += 1
        self.truncated_samples += outcome.truncated_tokens > 0
        self.truncated_tokens += outcome.truncated_tokens
        self.rewritten_samples += outcome.rewritten
        self.real_tokens += len(outcome)
        self.loss_tokens += outcome.loss_tokens

    def merge(self, other: Accounting) -> None:
        """Add the counts of ``other``, another worker's say, to these."""
        self.read += other.read
        self.kept += other.kept
        self.bad += other.bad
        self.truncated_samples += other.truncated_samples
        self.truncated_tokens += other.truncated_tokens
        self.rewritten_samples += other.rewritten_samples
        self.real_tokens += other.real_tokens
        self.loss_tokens += other.loss_tokens
        for reason, count in other.dropped.items():
            self._drop(reason, count, other.examples.get(reason, []))

    def to_json(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts that share nothing with this object."""
        self._check()
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped_total": self.dropped_total,
            "bad": self.bad,
            "dropped": dict(self.dropped),
            "examples": {reason: list(ids) for reason, ids in self.examples.items()},
            "truncated_samples": self.truncated_samples,
            "truncated_tokens": self.truncated_tokens,
            "rewritten_samples": self.rewritten_samples,
            "real_tokens": self.real_tokens,
            "loss_tokens": self.loss_tokens,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Accounting:
        """What :meth:`to_json` gave, as an object again that shares nothing with it."""
        numbers = {k: v for k, v in content.items() if isinstance(v, int) and k != "dropped_total"}
        examples = {reason: list(ids) for reason, ids in content["examples"].items()}
        return cls(**numbers, dropped=dict(content["dropped"]), examples=examples)

    def describe(self) -> str:
        """Return one line for people, the commonest reasons first."""
        self._check()
        text = f"{self.read:,} read: {self.kept:,} kept, {self.dropped_total:,} dropped"
        if self.dropped:
            reasons = sorted(self.dropped, key=lambda reason: (-self.dropped[reason], reason))
            text += f" ({'; '.join(self._describe_reason(reason) for reason in reasons)})"
        if self.truncated_samples:
            text += f"; {self.truncated_samples:,} truncated by {self.truncated_tokens:,} tokens"
        if self.rewritten_samples:
            text += f"; of {self.rewritten_samples:,} the chat template left out a part"
        return text

    def _drop(self, reason: str, count: int, source_ids: list[str]) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count
        examples = self.examples.setdefault(reason, [])
        # A line that comes again each epoch is one example.
        new = [source_id for source_id in source_ids if source_id not in examples]
        examples += new[: _EXAMPLES_KEPT - len(examples)]

    def _describe_reason(self, reason: str) -> str:
        shown = self.examples[reason][:_EXAMPLES_SHOWN]
        more = ["..."] if self.dropped[reason] > len(shown) else []
        return f"{self.dropped[reason]:,} {reason}: {', '.join(shown + more)}"

    def _check(self) -> None:
        total = self.kept + self.dropped_total
        assert self.read == total, f"{self.read} conversations read, {total} accounted for"


@dataclass(frozen=True)
class BadLimit:
    """How much of a pass over the data may be of no use. What is dropped as too long is of use.

    Attributes:
        fraction: the largest share that may be bad, ``[0, 1]``; None: any.
        size: conversations in a pass.
    """

    fraction: float | None
    size: int

    def check(self, accounting: Accounting) -> None:
        """Refuse what has arrived if the limit is certain to be passed, whatever comes.

        Raises:
            DataError: with the counts by reason.
        """
        if self.fraction is None or not accounting.bad:
            return
        # Over whole passes: bad records may stand first in one, and not in the next.
        passes = max(1, -(-accounting.read // self.size))
        if accounting.bad > self.fraction * self.size * passes:
            raise DataError(
                f"at least {accounting.bad:,} of {self.size * passes:,} conversations cannot be "
                f"used, more than data.max_bad_fraction={self.fraction} allows: "
                f"{accounting.describe()}. Look at the lines named; if all are of a form of "
                "their own, name it with data.format and data.columns; or raise "
                "data.max_bad_fraction, null to go on whatever the data holds"
            )
