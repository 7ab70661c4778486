"""The directory of a sweep and its ``sweep.json``: which jobs, in what order, how they ended."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from sft.errors import ConfigError
from sft.files import write_json

DONE, FAILED, NOT_STARTED = "done", "failed", "not started"


@dataclass(kw_only=True)
class JobRecord:
    """One job, as ``sweep.json`` has it.

    Attributes:
        name: its directory, below the sweep's.
        overrides: its words.
        status: ``done``, ``failed`` or ``not started``.
        exit_code: as a shell has it: 128 and the signal's number for a job that was killed. None:
            it was not started.
        error: why it failed, in a line.
        wall_seconds: from its start to its end, importing included.
        order: its place in the sweep, from 1.
    """

    name: str
    overrides: list[str]
    order: int
    status: str = NOT_STARTED
    exit_code: int | None = None
    error: str | None = None
    wall_seconds: float = 0.0


@dataclass(kw_only=True)
class SweepRecord:
    """A sweep; :meth:`write` keeps the file up to date.

    Attributes:
        directory: of the sweep.
        command: that started it.
        launcher: ``processes`` or ``in_process``.
        jobs: in the order in which they run.
        started_at: ISO 8601, with the offset from UTC.
        finished_at: None while it goes on.
    """

    directory: Path
    command: list[str]
    launcher: str
    jobs: list[JobRecord] = field(default_factory=list)
    started_at: str = field(default_factory=lambda: now())
    finished_at: str | None = None

    def write(self) -> None:
        """Write ``sweep.json``, whole at any moment."""
        content = {
            "command": self.command,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "launcher": self.launcher,
            "jobs": [asdict(job) for job in self.jobs],
        }
        write_json(self.directory / "sweep.json", content)


def now() -> str:
    """The time, with the offset from UTC."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def claim_sweep_dir(wanted: Path, *, renamed: bool) -> Path:
    """Make the directory of a sweep, which no other sweep has or gets.

    Args:
        wanted: its name.
        renamed: the name comes from the clock: where it is taken, a number is put behind it.

    Raises:
        ConfigError: it holds a sweep or a run, or cannot be written.
    """
    for directory in _candidates(wanted) if renamed else [wanted]:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not _holds_results(directory):
                # Of two that come at once, one creates the file.
                with (directory / "sweep.json").open("x", encoding="utf-8") as file:
                    file.write('{"jobs": []}\n')
                return directory
        except FileExistsError:
            if not directory.is_dir():
                raise ConfigError(
                    f"hydra.sweep.dir={wanted}: is a file; name a directory"
                ) from None
        except OSError as error:
            raise ConfigError(
                f"hydra.sweep.dir={wanted}: cannot be written ({error.strerror}); choose another "
                "directory"
            ) from error
    raise ConfigError(
        f"hydra.sweep.dir={wanted}: already holds a sweep or a run; choose another directory or "
        "remove it"
    )


def _candidates(wanted: Path) -> Iterator[Path]:
    yield wanted
    for number in itertools.count(2):
        yield wanted.with_name(f"{wanted.name}-{number}")


def _holds_results(directory: Path) -> bool:
    own = any((directory / n).exists() for n in ("sweep.json", "multirun.yaml", "run.json"))
    return own or any(directory.glob("*/run.json"))
