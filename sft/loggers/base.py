"""What a logger is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Scalar = float | int | str | bool | None
Metrics = Mapping[str, Scalar]

# What a curve can be drawn over; the other values of a record are measured at these.
AXES = ("step", "total_real_tokens", "wall_seconds")


class MetricSink(Protocol):
    """An open logger."""

    def log(self, metrics: Metrics) -> None:
        """Take one record; ``step`` and ``event`` are always among its keys."""

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Write out what is left. Called once, also after an error.

        Args:
            summary: the content of ``summary.json``; None: the run failed.
        """


@dataclass(frozen=True, kw_only=True)
class MetricLogger(ABC):
    """A logger's settings. A logger is one file here and one YAML in ``conf/logger``.

    What it raises ends it and not the run, so it need not catch anything.
    """

    @abstractmethod
    def open(self, run_dir: Path) -> MetricSink:
        """Start logging one run, in its first process only; ``run_dir`` has its ``run.json``."""

    def go_on(self, run_dir: Path, step: int) -> MetricSink:
        """Log on after a run was resumed; by default as if it began.

        Args:
            run_dir: in which it was logged before.
            step: the last one that counts; those after it come again.
        """
        return self.open(run_dir)


def by_event(metrics: Metrics) -> dict[str, Scalar]:
    """A record with each value named after its event; without what is not known.

    >>> by_event({"event": "val", "step": 4, "val_loss": 2.5, "mfu": None})
    {'step': 4, 'val/loss': 2.5}
    """
    event = str(metrics["event"])
    return {
        name if name in AXES else f"{event}/{name.removeprefix(f'{event}_')}": value
        for name, value in metrics.items()
        if name != "event" and value is not None
    }
