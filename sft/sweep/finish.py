"""The end of a sweep: its report, and what its exit code says."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sft.errors import ConfigError, TrainingError
from sft.loggers.wandb import log_comparison, logger_of
from sft.sweep.run import SweepFailed


class JobFailed(TrainingError):
    """A job of a sweep failed in another process. The message is one line.

    Attributes:
        exit_code: of the job; None if it was not started.
    """

    def __init__(self, message: str, exit_code: int | None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def write_report(directory: Path) -> None:
    """Write the report on a sweep and say where; that it cannot be is said, and no more.

    Args:
        directory: of the sweep.
    """
    if not any(directory.rglob("run.json")):
        return  # nothing has run
    try:
        # Only now: it draws, and a sweep that is refused need not wait for that.
        report: Any = importlib.import_module("sft.report")
        print(f"report: {report.write_report([directory], directory)}")
        _mirror_report(directory)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"stowage: the report could not be written ({reason})", file=sys.stderr)


def _mirror_report(directory: Path) -> None:
    """Log the comparison where the runs were logged, if that was Weights & Biases."""
    for path in sorted(directory.rglob("run.json")):
        with contextlib.suppress(ValueError):  # of a run that was stopped at its very beginning
            settings = logger_of(json.loads(path.read_text(encoding="utf-8")))
            if settings is not None:
                content = json.loads((directory / "report.json").read_text(encoding="utf-8"))
                log_comparison(content, directory, settings)
                return


def sweep_failure(failures: Sequence[Any], jobs: int, directory: Path) -> SweepFailed:
    """What to tell when jobs failed.

    Args:
        failures: for each that did not end well, its exception; None if it was not started.
        jobs: of the sweep.
        directory: of the sweep.
    """
    refused = [f for f in failures if isinstance(f, ConfigError) or _code(f) == 2]
    if len(refused) == jobs:
        told = {str(f) for f in refused}
        reason = told.pop() if len(told) == 1 else "each for its settings, as listed above"
        return SweepFailed(f"all {jobs} jobs were refused: {reason}", 2)
    idle = sum(isinstance(f, JobFailed) and f.exit_code is None for f in failures)
    also = f" and {idle} were not started" if idle else ""
    return SweepFailed(
        f"{len(failures) - idle} of {jobs} jobs failed{also}; why is said above, in "
        f"{directory / 'sweep.json'} and in the jobs' logs",
        1,
    )


def _code(failure: Any) -> int | None:
    return failure.exit_code if isinstance(failure, JobFailed) else None
