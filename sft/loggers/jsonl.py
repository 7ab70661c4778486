"""``metrics.jsonl``: one JSON object per line, the record of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sft.errors import TrainingError
from sft.loggers.base import MetricLogger, Metrics, MetricSink


@dataclass(frozen=True, kw_only=True)
class JsonlLogger(MetricLogger):
    """Writes each record at once, so that a run that dies leaves all it has measured."""

    def open(self, run_dir: Path) -> MetricSink:
        """Start a new file.

        Raises:
            TrainingError: it cannot be written; also of the sink's methods.
        """
        return _JsonlSink(run_dir / "metrics.jsonl", "x")

    def go_on(self, run_dir: Path, step: int) -> MetricSink:
        """Append to the file, which has been cut back to ``step``.

        Raises:
            TrainingError: it cannot be written; also of the sink's methods.
        """
        return _JsonlSink(run_dir / "metrics.jsonl", "a")


class _JsonlSink:
    def __init__(self, path: Path, mode: str) -> None:
        self._path = path
        self._lost = False
        with self._writing():
            self._file = path.open(mode, encoding="utf-8", buffering=1)

    def log(self, metrics: Metrics) -> None:
        with self._writing():
            self._file.write(json.dumps(dict(metrics), allow_nan=False) + "\n")

    def close(self, summary: Mapping[str, Any] | None) -> None:
        if self._lost:
            # The line that could not be written is still buffered, and closing tries again.
            try:
                self._file.close()
            except OSError:
                return
        with self._writing():
            self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._lost = True
            raise TrainingError(
                f"{self._path}: cannot be written ({error.strerror}). It is the record of the "
                "run, which ends here"
            ) from error
