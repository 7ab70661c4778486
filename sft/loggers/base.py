"""What a logger is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Scalar = float | int | str | bool | None
Metrics = Mapping[str, Scalar]


class MetricSink(Protocol):
    """An open logger."""

    def log(self, metrics: Metrics) -> None:
        """Take one record; ``step`` and ``event`` are always among its keys."""

    def close(self) -> None:
        """Write out what is left. Called once, also after an error."""


@dataclass(frozen=True, kw_only=True)
class MetricLogger(ABC):
    """A logger's settings. A logger is one file here and one YAML in ``conf/logger``."""

    @abstractmethod
    def open(self, run_dir: Path) -> MetricSink:
        """Start logging one run."""
