"""``metrics.jsonl``: one JSON object per line, the record of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sft.loggers.base import MetricLogger, Metrics, MetricSink


@dataclass(frozen=True, kw_only=True)
class JsonlLogger(MetricLogger):
    """Writes each record at once, so that a run that dies leaves all it has measured."""

    def open(self, run_dir: Path) -> MetricSink:
        """Start a new file."""
        return _JsonlSink(run_dir / "metrics.jsonl")


class _JsonlSink:
    def __init__(self, path: Path) -> None:
        self._file = path.open("x", encoding="utf-8", buffering=1)

    def log(self, metrics: Metrics) -> None:
        self._file.write(json.dumps(dict(metrics), allow_nan=False) + "\n")

    def close(self) -> None:
        self._file.close()
