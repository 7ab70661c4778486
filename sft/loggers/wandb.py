"""Weights & Biases: one run of ours is one run there, those of a sweep are a group.

Nothing is taken over from the environment or from an earlier job of the process: the id is this
run's own, kept in its directory, so that a run that is resumed goes on under it.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from sft.loggers.base import AXES, MetricLogger, Metrics, MetricSink, by_event

ID_FILE = "wandb_id"

# What wandb would take for this run's own: the identity of another, or where it is told to go.
_INHERITED = (
    "WANDB_DIR", "WANDB_DISABLED", "WANDB_JOB_TYPE", "WANDB_LAUNCH", "WANDB_MODE", "WANDB_NAME",
    "WANDB_NOTES", "WANDB_RESUME", "WANDB_RUN_GROUP", "WANDB_RUN_ID", "WANDB_SWEEP_ID",
    "WANDB_TAGS",
)  # fmt: skip
_CONNECT_SECONDS = 30
_UPLOAD_SECONDS = 120  # at the end of a run; what is not uploaded then stays in its directory


class WandbMode(Enum):
    """Where a run goes."""

    OFFLINE = "offline"
    ONLINE = "online"
    DISABLED = "disabled"


@dataclass(frozen=True, kw_only=True)
class WandbLogger(MetricLogger):
    """A run at Weights & Biases, or its files for a later ``wandb sync``.

    Attributes:
        mode: ``offline`` leaves files only, and needs no account; ``disabled`` logs nothing.
        project: where the runs are.
        entity: the user or team; None: the account's own.
    """

    mode: WandbMode = WandbMode.OFFLINE
    project: str = "stowage"
    entity: str | None = None

    def __post_init__(self) -> None:
        """Refuse names that W&B would refuse."""
        if not re.fullmatch(r"[^/\\#?%:]{1,128}", self.project):
            raise ValueError(
                f"project={self.project}: must have 1 to 128 characters, none of them / \\ # ? % :"
            )

    def open(self, run_dir: Path) -> MetricSink:
        """Start the run, or go on with it where the directory holds its id.

        Raises:
            ModuleNotFoundError: wandb is not installed.
            RuntimeError: wandb cannot be reached, or has no key.
        """
        if self.mode is WandbMode.DISABLED:
            return _NoSink()
        content = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
        return _WandbSink(_start(self, run_dir, config=content))


class _NoSink:
    def log(self, metrics: Metrics) -> None:
        pass

    def close(self, summary: Mapping[str, Any] | None) -> None:
        pass


class _WandbSink:
    def __init__(self, run: Any) -> None:
        self._run = run
        for axis in AXES:
            run.define_metric(axis)
        for event in ("train", "val"):
            run.define_metric(f"{event}/*", step_metric="step")

    def log(self, metrics: Metrics) -> None:
        # With our step: of steps that are done again after a resume, wandb keeps the first.
        self._run.log(by_event(metrics), step=metrics["step"])

    def close(self, summary: Mapping[str, Any] | None) -> None:
        try:
            self._run.summary.update(dict(summary or {}))
        finally:
            _finish(self._run, 0 if summary is not None else 1)


def logger_of(description: Mapping[str, Any]) -> WandbLogger | None:
    """The logger that a run was configured with, if it logged to W&B at all.

    Args:
        description: the content of the run's ``run.json``.
    """
    name = f"{WandbLogger.__module__}.{WandbLogger.__qualname__}"
    for settings in description.get("config", {}).get("logger", {}).values():
        if settings.get("_target_") == name:
            mode = WandbMode(settings["mode"])
            return WandbLogger(mode=mode, project=settings["project"], entity=settings["entity"])
    return None


def log_comparison(report: Mapping[str, Any], directory: Path, settings: WandbLogger) -> None:
    """Log the table and the curves of a report as a run of its own, in the group of its sweep.

    Args:
        report: the content of ``report.json``: ``table`` with ``columns`` and ``rows``, and
            ``curves``, a list for each chart, its name a key or several within one another. An
            entry of the list is a line, ``{"choice", "x", "mean"}``, or a point of the only line,
            ``{"x", "y"}``.
        directory: of the report; the files go there.
        settings: those of the runs.

    Raises:
        ModuleNotFoundError: wandb is not installed.
        RuntimeError: wandb cannot be reached, or has no key.
    """
    if settings.mode is WandbMode.DISABLED:
        return
    run = _start(settings, directory, job_type="report")
    wandb = importlib.import_module("wandb")
    exit_code = 1
    try:
        # Tables are put together in a place that is the home directory's unless told otherwise.
        with _environment({"WANDB_DATA_DIR": str(directory / "wandb" / "data")}):
            table = report["table"]
            content: dict[str, Any] = {
                "comparison": wandb.Table(
                    columns=[str(name) for name in table["columns"]],
                    data=[list(row) for row in table["rows"]],
                    allow_mixed_types=True,
                )
            }
            for name, lines in _charts(report.get("curves", {})):
                content[f"curves/{name}"] = wandb.plot.line_series(
                    xs=[xs for _, xs, _ in lines],
                    ys=[ys for _, _, ys in lines],
                    keys=[label for label, _, _ in lines],
                    title=name,
                    xname=name.rpartition("/")[2],
                )
            run.log(content)
        exit_code = 0
    finally:
        _finish(run, exit_code)


Line = tuple[str, Sequence[float], Sequence[float]]


def _charts(curves: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, list[Line]]]:
    """Each chart's name and lines; one without lines is left out."""
    for name, content in curves.items():
        if isinstance(content, Mapping):
            yield from _charts(content, f"{prefix}{name}/")
        elif content and isinstance(content[0]["x"], Sequence):
            yield f"{prefix}{name}", [(c["choice"], c["x"], c["mean"]) for c in content]
        elif content:
            yield f"{prefix}{name}", [(name, [p["x"] for p in content], [p["y"] for p in content])]


def sweep_of(directory: Path) -> Path | None:
    """The sweep that a directory is, or is in; None for a run alone."""
    for candidate in (directory.resolve(), *directory.resolve().parents):
        if any((candidate / name).is_file() for name in ("multirun.yaml", "sweep.json")):
            return candidate
    return None


def _start(settings: WandbLogger, directory: Path, **about: Any) -> Any:
    """A run whose files are in ``directory``."""
    places = {"WANDB_CACHE_DIR": str(directory / "wandb" / "cache"), "WANDB_SILENT": "true"}
    # Reports of errors would leave the machine in offline mode too.
    with _environment({**places, "WANDB_ERROR_REPORTING": "false"}):
        try:
            wandb = importlib.import_module("wandb")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"the package {error.name} is missing: pip install 'stowage[wandb]'"
            ) from error
        # Silent, wandb asks for no login, and prints nothing into the console of the run.
        quiet = wandb.Settings(
            silent=True,
            console="off",
            run_group=sweep.name if (sweep := sweep_of(directory)) else None,
            init_timeout=_CONNECT_SECONDS,
            finish_timeout=_UPLOAD_SECONDS,
        )
        wandb.setup(settings=wandb.Settings(silent=True))
        try:
            return wandb.init(
                id=_id_of(directory),
                resume="allow",
                reinit="create_new",
                mode=settings.mode.value,
                project=settings.project,
                entity=settings.entity,
                name=directory.resolve().name,
                dir=str(directory),
                settings=quiet,
                **about,
            )
        except Exception as error:
            _stop(1)
            if settings.mode is WandbMode.OFFLINE or not isinstance(error, wandb.errors.Error):
                raise
            raise RuntimeError(
                f"{str(error).rstrip('.')}. logger.wandb.mode=offline needs neither a key "
                "(WANDB_API_KEY) nor a network"
            ) from error


def _finish(run: Any, exit_code: int) -> None:
    """End a run, and wandb's own process with it.

    That process writes the last of the files after ``finish`` has returned; when it has ended,
    they are whole. And the next job of this process forks its workers while there are no threads.
    """
    try:
        run.finish(exit_code=exit_code)
    finally:
        _stop(exit_code)


def _stop(exit_code: int) -> None:
    try:
        importlib.import_module("wandb").teardown(exit_code=exit_code)
    except SystemExit as error:  # not for wandb to decide
        raise RuntimeError(f"wandb's own process ended with exit code {error.code}") from error


def _id_of(directory: Path) -> str:
    """The id that the directory holds; a new one, kept there, where it holds none."""
    file = directory / ID_FILE
    known = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    if known:
        return known
    new = secrets.token_hex(8)
    file.write_text(f"{new}\n", encoding="utf-8")
    return new


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for a while: ``values`` where unset, and no other run's identity.

    What is set meanwhile stays: wandb leaves there how to reach its own process.
    """
    hidden = {name: os.environ.pop(name) for name in _INHERITED if name in os.environ}
    ours = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
        os.environ.update(hidden)
