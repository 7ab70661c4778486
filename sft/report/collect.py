"""Find runs and sweeps on disk and read them. What is broken is named, never fatal."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sft.errors import ConfigError

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run left.

    Attributes:
        path: its directory.
        description: the content of ``run.json``.
        summary: the content of ``summary.json``; None where the run did not finish.
        samples: the content of ``samples.json``; None where there is none.
        train: the training records, in order, one a step.
        val: the validation records, in order.
        order: its position in its sweep; None outside one.
        problem: why it did not finish; None where it did.
    """

    path: Path
    description: Record
    summary: Record | None
    samples: Record | None
    train: list[Record]
    val: list[Record]
    order: int | None = None
    problem: str | None = None

    @property
    def config(self) -> Record:
        """The resolved settings."""
        return _mapping(self.description.get("config"))

    @property
    def seed(self) -> Any:
        """The seed of weights and order."""
        return self.config.get("seed")

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.summary is not None


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job of a sweep, as ``sweep.json`` tells it."""

    name: str
    path: Path
    status: str
    error: str | None
    exit_code: int | None
    order: int | None


@dataclass(kw_only=True)
class Collected:
    """Everything that was found.

    Attributes:
        runs: with settings that could be read, finished or not.
        jobs: of all sweeps.
        sweeps: the contents of the ``sweep.json`` files, by directory.
        unreadable: (directory, reason) of runs that left nothing to read.
        notes: what else a reader should know.
    """

    runs: list[Run] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    sweeps: dict[Path, Record] = field(default_factory=dict)
    unreadable: list[tuple[Path, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def collect(directories: Sequence[Path]) -> Collected:
    """Read every run and sweep below the directories, each once.

    Raises:
        ConfigError: a directory is not there, or none holds a run.
    """
    for directory in directories:
        if not directory.is_dir():
            raise ConfigError(f"{directory}: is no directory; name one that holds runs")
    found = Collected()
    for path in _unique(_find(directories, "sweep.json")):
        _read_sweep(path, found)
    jobs = {job.path.resolve(): job for job in found.jobs}
    seen: dict[str, Path] = {}
    for path in _unique(_find(directories, "run.json")):
        _read_run(path.parent, jobs.get(path.parent.resolve()), seen, found)
    if not found.runs and not found.unreadable and not found.jobs:
        names = ", ".join(str(d) for d in directories)
        raise ConfigError(f"{names}: no run below it (a directory with run.json)")
    found.runs.sort(key=_when)
    return found


def _when(run: Run) -> tuple[str, int, str]:
    return str(run.description.get("started_at") or ""), run.order or 0, str(run.path)


def _find(directories: Sequence[Path], name: str) -> Iterator[Path]:
    for directory in directories:
        for root, inner, files in os.walk(directory):
            # Checkpoints hold many files and no run.
            inner[:] = sorted(d for d in inner if d not in (".hydra", "checkpoints"))
            if name in files:
                yield Path(root) / name


def _unique(paths: Iterator[Path]) -> list[Path]:
    return list({path.resolve(): path for path in paths}.values())


def _read_sweep(path: Path, found: Collected) -> None:
    content = read_json(path)
    if content is None:
        found.notes.append(f"{path}: cannot be read as JSON")
        return
    found.sweeps[path.parent] = content
    jobs = content.get("jobs")
    for job in jobs if isinstance(jobs, list) else []:
        job = _mapping(job)
        found.jobs.append(
            Job(
                name=str(job.get("name")),
                path=path.parent / str(job.get("name")),
                status=str(job.get("status")),
                error=job.get("error"),
                exit_code=job.get("exit_code"),
                order=job.get("order"),
            )
        )


def _read_run(path: Path, job: Job | None, seen: dict[str, Path], found: Collected) -> None:
    description = read_json(path / "run.json")
    if not description or not _mapping(description.get("config")):
        found.unreadable.append((path, (job and job.error) or "run.json holds no settings"))
        return
    content = _bytes(path / "run.json") + _bytes(path / "metrics.jsonl")
    digest = hashlib.sha256(content).hexdigest()
    if digest in seen:
        found.notes.append(f"{path}: is the same run as {seen[digest]}; counted once")
        return
    seen[digest] = path
    summary = read_json(path / "summary.json")
    train, val = _read_metrics(path / "metrics.jsonl")
    found.runs.append(
        Run(
            path=path,
            description=description,
            summary=summary,
            samples=read_json(path / "samples.json"),
            train=train,
            val=val,
            order=job.order if job else None,
            problem=None if summary is not None else _problem(path, job),
        )
    )


def _problem(path: Path, job: Job | None) -> str:
    if job and job.error:
        return job.error
    try:
        log = (path / "train.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        log = ""
    if "Traceback (most recent call last)" in log:
        return log.strip().splitlines()[-1]
    return "left no summary.json: it was ended from outside, or still runs"


def read_json(path: Path) -> Record | None:
    """A JSON object, with null for what is no finite number; None where it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return finite(content) if isinstance(content, dict) else None


def _read_metrics(path: Path) -> tuple[list[Record], list[Record]]:
    """The records of a run; a last line that was cut off is left out, a step told twice is once."""
    train: dict[int, Record] = {}
    val: dict[int, Record] = {}
    for line in _bytes(path).splitlines():
        try:
            record = finite(json.loads(line))
        except ValueError:
            continue
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            continue
        if record.get("event") in ("train", "val"):
            (train if record["event"] == "train" else val)[record["step"]] = record
    return [train[s] for s in sorted(train)], [val[s] for s in sorted(val)]


def finite(value: Any) -> Any:
    """JSON without NaN and infinities: null instead."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _mapping(value: Any) -> Record:
    return value if isinstance(value, dict) else {}
