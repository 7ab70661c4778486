"""All loggers of a run: ``metrics.jsonl`` is the record, the others mirror it.

A mirror that fails is given up and said once; the run goes on without it. The record is always
written, and a run that cannot write it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sft.loggers.base import MetricLogger, Metrics, MetricSink
from sft.loggers.jsonl import JsonlLogger

_log = logging.getLogger(__name__)


class RunLog:
    """Hands each record to every logger, the record first."""

    def __init__(
        self,
        run_dir: Path,
        loggers: Mapping[str, MetricLogger],
        say: Callable[[str], None],
        *,
        writes: bool = True,
        resumed_at: int | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            run_dir: the run's directory, with its ``run.json``.
            loggers: by name.
            say: shows a person a line.
            writes: whether this process does; of several only the first, in the others this does
                nothing.
            resumed_at: the step after which the run goes on; None: it begins.
        """
        self._run_dir = run_dir
        self._loggers = dict(loggers)
        self._say = say
        self._writes = writes
        self._resumed_at = resumed_at
        self._record: MetricSink | None = None
        self._mirrors: dict[str, MetricSink] = {}
        self._summary: Mapping[str, Any] | None = None

    def __enter__(self) -> Self:
        """Open the record.

        Raises:
            TrainingError: it cannot be written.
        """
        given = [n for n, found in self._loggers.items() if isinstance(found, JsonlLogger)]
        record = self._loggers.pop(given[0]) if given else JsonlLogger()
        if self._writes:
            self._record = self._opened(record)
        return self

    def open_mirrors(self) -> None:
        """Open the other loggers.

        They may start threads, and a process with threads should not fork; so this is called
        when the workers that load data have been.
        """
        if not self._writes:
            return
        for name, logger in self._loggers.items():
            try:
                self._mirrors[name] = self._opened(logger)
            except Exception as error:
                self._give_up(name, error)

    def _opened(self, logger: MetricLogger) -> MetricSink:
        if self._resumed_at is None:
            return logger.open(self._run_dir)
        return logger.go_on(self._run_dir, self._resumed_at)

    def __call__(self, metrics: Metrics) -> None:
        """Log one record.

        Raises:
            TrainingError: the record cannot be written.
        """
        if self._record is not None:
            self._record.log(metrics)
        for name, sink in list(self._mirrors.items()):
            try:
                sink.log(metrics)
            except Exception as error:
                self._give_up(name, error)

    def done(self, summary: Mapping[str, Any]) -> None:
        """Take the content of ``summary.json``; without it, the run counts as failed."""
        self._summary = summary

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every logger.

        Raises:
            TrainingError: the last of the record cannot be written.
        """
        summary = self._summary if kind is None else None
        try:
            self._close_mirrors(summary)
        finally:
            if self._record is not None:
                self._record.close(summary)

    def _close_mirrors(self, summary: Mapping[str, Any] | None) -> None:
        while self._mirrors:
            name, sink = self._mirrors.popitem()
            try:
                sink.close(summary)
            except Exception as error:
                self._give_up(name, error)

    def _give_up(self, name: str, error: Exception) -> None:
        reason = " ".join(f"{error}".split()) or type(error).__name__
        _log.warning("logger %s is given up", name, exc_info=error)
        self._say(f"logger {name} is given up, the run goes on without it: {reason}")
        if (sink := self._mirrors.pop(name, None)) is not None:
            with suppress(Exception):
                sink.close(None)
