"""TensorBoard: the curves, and a run's settings beside its results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sft.loggers.base import AXES, MetricLogger, Metrics, MetricSink, by_event

# What TensorBoard takes as a hyperparameter or as a result.
Plain = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class TensorBoardLogger(MetricLogger):
    """Event files in the run's directory; ``tensorboard --logdir runs`` finds those of all runs."""

    def open(self, run_dir: Path) -> MetricSink:
        """Start an event file.

        Raises:
            ModuleNotFoundError: TensorBoard is not installed.
        """
        return self._sink(run_dir, None)

    def go_on(self, run_dir: Path, step: int) -> MetricSink:
        """Start another event file, in which TensorBoard reads that steps after ``step`` are void.

        Raises:
            ModuleNotFoundError: TensorBoard is not installed.
        """
        return self._sink(run_dir, step + 1)

    def _sink(self, run_dir: Path, purge_step: int | None) -> MetricSink:
        try:
            # Only now: it takes a second, and is not installed everywhere.
            from torch.utils.tensorboard import SummaryWriter, summary
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"the package {error.name} is missing: pip install 'stowage[tensorboard]'"
            ) from error
        run = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
        where = str(run_dir / "tensorboard")
        writer = SummaryWriter(where, flush_secs=10, purge_step=purge_step)
        return _TensorBoardSink(writer, summary.hparams, run)


class _TensorBoardSink:
    def __init__(
        self, writer: Any, hparams: Callable[..., tuple[Any, ...]], run: Mapping[str, Any]
    ) -> None:
        self._writer, self._hparams = writer, hparams
        self._settings = dict(_flat(run.get("config", {})))
        writer.add_text("run.json", _as_code(run), 0)
        writer.flush()

    def log(self, metrics: Metrics) -> None:
        for name, value in by_event(metrics).items():
            if name not in AXES[:1] and isinstance(value, int | float):
                # An axis by the same name of two events would be one curve with two values a step.
                title = f"{metrics['event']}/{name}" if name in AXES else name
                self._writer.add_scalar(title, value, metrics["step"])
        if metrics["event"] == "val":
            self._writer.flush()

    def close(self, summary: Mapping[str, Any] | None) -> None:
        try:
            if summary is not None:
                results = {f"summary/{n}": v for n, v in summary.items() if _is_number(v)}
                # The writer's own add_hparams would start a second file for them.
                for event in self._hparams(self._settings, results):
                    self._writer.file_writer.add_summary(event)
                for name, value in results.items():
                    self._writer.add_scalar(name, value, summary["steps"])
                self._writer.add_text("summary.json", _as_code(summary), 0)
        finally:
            self._writer.close()


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Plain]]:
    """The plain values of a tree, by their paths; lists and nulls are left out."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float | str):
            yield f"{prefix}{name}", value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_code(content: Mapping[str, Any]) -> str:
    """JSON as Markdown, which is what TensorBoard shows text as."""
    return "\n".join(f"    {line}" for line in json.dumps(content, indent=2).splitlines())
