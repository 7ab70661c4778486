"""Where a run goes on: which checkpoint, and whether it is of the same run. No torch here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.shared_stream import StreamPosition
from sft import keeping
from sft.config import RunConfig
from sft.errors import ConfigError, TrainingError
from sft.files import write_text

RECORD = "metrics.jsonl"


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a run begins.

    Attributes:
        state: what ``checkpoint.json`` has under that name; empty at the beginning.
        in_place: the run's directory holds a run, whose record goes on or is begun anew.
        checkpoint: to go on from; None: at the beginning.
    """

    state: Mapping[str, Any]
    in_place: bool
    checkpoint: Path | None = None

    @property
    def position(self) -> StreamPosition | None:
        """Of the training conversations; None at the beginning."""
        return StreamPosition.from_json(self.state["position"]) if self.state else None

    @property
    def steps(self) -> int:
        """Optimizer steps done before."""
        return int(self.state["progress"]["steps"]) if self.state else 0


def find_start(config: RunConfig, say: Callable[[str], None]) -> Start:
    """Where ``resume`` says that the run begins.

    Args:
        config: the run's.
        say: told of checkpoints that are damaged, and of a run that begins anew.

    Raises:
        ConfigError: there is no such checkpoint, it is damaged, or it cannot be gone on from.
    """
    source, run_dir = config.resume.source, config.run_dir
    holds_run = (run_dir / "run.json").exists()
    if source == "never" or (source == "auto" and not holds_run):
        return Start(state={}, in_place=False)
    checkpoint = _checkpoint(run_dir if source == "auto" else Path(source), say)
    if checkpoint is None:
        if source != "auto":
            raise ConfigError(
                f"resume.source={source}: holds no whole checkpoint; name another run or "
                "checkpoint, or use resume=never to start anew"
            )
        say(f"{run_dir}: holds no whole checkpoint, so the run starts anew")
        return Start(state={}, in_place=True)
    within = checkpoint.resolve().is_relative_to(run_dir.resolve())
    if holds_run and not within:
        raise ConfigError(
            f"run_dir={run_dir}: already holds a run, and resume.source={source} is another; "
            "choose another directory, or use resume=auto to go on with the run that is there"
        )
    start = Start(checkpoint=checkpoint, state=_state(checkpoint), in_place=holds_run)
    if source != "auto" and holds_run:
        _refuse_newer(run_dir, start, source)
    return start


def _refuse_newer(run_dir: Path, start: Start, source: str) -> None:
    """The record is cut back to the checkpoint; those after it would have none."""
    newer = [
        path.name
        for path in keeping.whole_checkpoints(run_dir)
        if int(path.name.removeprefix("step-")) > start.steps
    ]
    if newer:
        raise ConfigError(
            f"resume.source={source}: is not the newest of its run, which goes on in "
            f"run_dir={run_dir}; choose another run_dir, or remove {', '.join(newer)}"
        )


def _checkpoint(where: Path, say: Callable[[str], None]) -> Path | None:
    if not where.is_dir():
        raise ConfigError(
            f"resume.source={where}: is no directory; name a run or one of its "
            "checkpoints/step-N, or use auto or never"
        )
    if (where / "checkpoint.json").exists() or (where / keeping.SEAL).exists():
        fault = keeping.verify(where)
        if fault is not None:
            raise ConfigError(f"resume.source={where}: is damaged: {fault}; name another one")
        return where
    try:
        return keeping.newest_whole(where, say)
    except OSError as error:
        raise ConfigError(
            f"resume.source={where}: cannot be read ({error.strerror or error})"
        ) from error


def _state(checkpoint: Path) -> Mapping[str, Any]:
    try:
        content = json.loads((checkpoint / "checkpoint.json").read_text(encoding="utf-8"))
        state = content.get("state")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{checkpoint}/checkpoint.json: cannot be read ({error})") from error
    if not isinstance(state, dict) or not state or not (checkpoint / "training").is_dir():
        raise ConfigError(
            f"{checkpoint}: holds weights only, it was left by an earlier version; to train on "
            "from its weights, export it and use model=hf model.init_from=..."
        )
    return state


def keep_record(source: Path, run_dir: Path, state: Mapping[str, Any]) -> None:
    """Cut the record of a run back to a checkpoint; what was done after it will be done again.

    Args:
        source: the run that left the checkpoint.
        run_dir: the run that goes on; the same, or another that takes the record over.
        state: of the checkpoint; empty: nothing is kept.

    Raises:
        TrainingError: it cannot be read or written.
    """
    steps = state["progress"]["steps"] if state else -1
    validations = state["progress"]["validations"] if state else []
    last = {"train": steps, "val": validations[-1]["step"] if validations else -1}
    try:
        path = source / RECORD
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = [line for line in lines if _is_before(line, last)]
        write_text(run_dir / RECORD, "".join(f"{line}\n" for line in kept))
        for name in ("summary.json", "samples.json"):
            (run_dir / name).unlink(missing_ok=True)
    except OSError as error:
        raise TrainingError(
            f"{run_dir / RECORD}: cannot be written ({error.strerror or error})"
        ) from error


def _is_before(line: str, last: Mapping[str, int]) -> bool:
    try:
        record = json.loads(line)
        return bool(record["step"] <= last.get(record["event"], -1))
    except (ValueError, LookupError, TypeError):
        return False  # the line that was being written when the run died
