"""The engine's own settings: ``train``, ``loss``, ``eval`` and ``resume``. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from data.packing.settings import PackingMode


class LossAverage(Enum):
    """What weighs the same in the loss of a step."""

    TOKEN = "token"
    SAMPLE = "sample"


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """The ``loss`` section.

    Attributes:
        average: ``token``: every loss token of the step weighs the same; ``sample``: every
            conversation does. Neither depends on how the step was packed.
    """

    average: LossAverage = LossAverage.TOKEN


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The ``train`` section.

    Attributes:
        steps: optimizer steps; or set ``epochs``.
        epochs: passes over the training conversations; or set ``steps``.
        global_batch_tokens: slots per optimizer step, the most; set this or one of the next two.
        global_batch_samples: conversations per optimizer step (``none`` and ``trainer`` only).
        global_batch_real_tokens: real tokens per optimizer step, on average and whoever packs:
            every choice then does as many steps on as many tokens.
        micro_batch_size: conversations per padded rectangle (``none`` only). None: 4.
        eval_every: optimizer steps between two validations; 0: only at the start and the end.
        save_every: optimizer steps between two checkpoints; 0: only at the end, or where the run
            is stopped before it; None: never.
        keep_last: how many checkpoints stay, beside that of the best validation loss. None: all.
        stop_after: wall time after which the run must have saved and ended, ``HH:MM:SS``, counted
            from its start. None: no limit.
        log_every: optimizer steps between two lines on a console that is no terminal.
        speed_skip_steps: first steps left out of the speeds: caches and allocators warm up.
        threads: torch threads on a CPU. None: torch's choice.
    """

    steps: int | None = None
    epochs: int | None = None
    global_batch_tokens: int | None = None
    global_batch_samples: int | None = None
    global_batch_real_tokens: int | None = None
    micro_batch_size: int | None = None
    eval_every: int = 0
    save_every: int | None = 0
    keep_last: int | None = None
    stop_after: str | None = None
    log_every: int = 10
    speed_skip_steps: int = 2
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "epochs",
            "global_batch_tokens",
            "global_batch_samples",
            "global_batch_real_tokens",
            "micro_batch_size",
            "keep_last",
            "log_every",
            "threads",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        for name in ("eval_every", "save_every", "speed_skip_steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                never = ", or null for never" if name == "save_every" else ""
                raise ValueError(f"{name}={value}: must be at least 0{never}")
        if self.save_every is None:
            for name in ("keep_last", "stop_after"):
                if (value := getattr(self, name)) is not None:
                    raise ValueError(
                        f"{name}={value}: no checkpoint is saved with train.save_every=null; "
                        "remove it, or use train.save_every=0"
                    )
        if self.stop_after is not None:
            _seconds(self.stop_after)
        _one_of({"steps": self.steps, "epochs": self.epochs})
        _one_of(
            {
                "global_batch_tokens": self.global_batch_tokens,
                "global_batch_samples": self.global_batch_samples,
                "global_batch_real_tokens": self.global_batch_real_tokens,
            }
        )

    @property
    def stop_after_seconds(self) -> int | None:
        """``stop_after`` in seconds."""
        return None if self.stop_after is None else _seconds(self.stop_after)


# What may differ from the run that left a checkpoint. Of data, tokenizer and seed a run cannot go
# on with others: its place in them would mean nothing.
RESUME_ALLOW = ("packing", "packer", "batch", "model", "lora", "loss")


@dataclass(frozen=True, kw_only=True)
class ResumeSettings:
    """The ``resume`` section; ``resume=auto`` on the command line is ``resume.source=auto``.

    Attributes:
        source: ``never``: start anew, in a directory that holds no run; ``auto``: go on from the
            newest whole checkpoint in ``run_dir``, or start anew where there is none; else a
            checkpoint, or a run whose newest one is taken.
        allow: what may differ from the run that left the checkpoint, of :data:`RESUME_ALLOW`.
    """

    source: str = "never"
    allow: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError("source=: must be never, auto, or the path of a run or checkpoint")
        for name in self.allow:
            if name not in RESUME_ALLOW:
                raise ValueError(
                    f"allow=[{','.join(self.allow)}]: {name} is not among what can differ: "
                    f"{', '.join(RESUME_ALLOW)}"
                )
        if self.allow and self.source == "never":
            raise ValueError(
                f"allow=[{','.join(self.allow)}]: nothing is gone on with; use resume=auto or "
                "resume=PATH, or remove it"
            )


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """The ``eval`` section. Whatever it says, the validation loss comes out the same.

    Attributes:
        packing: who packs the validation conversations; None: who packs in training. ``none`` is
            the plain measurement, the other two are faster.
        micro_batch_size: conversations per padded rectangle (``none`` only). None: as in training
            with ``packing=none``. More fit into memory than in training: no gradient is kept.
    """

    packing: PackingMode | None = None
    micro_batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise ValueError(f"micro_batch_size={self.micro_batch_size}: must be at least 1")


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+):([0-5]\d):([0-5]\d)", text)
    parts = [int(part) for part in match.groups()] if match else [0, 0, 0]
    seconds = parts[0] * 3600 + parts[1] * 60 + parts[2]
    if not seconds:
        raise ValueError(f"stop_after={text}: must be a time above 0 as 'HH:MM:SS', in quotes")
    return seconds


def _one_of(values: Mapping[str, int | None]) -> None:
    count = sum(value is not None for value in values.values())
    if count != 1:
        found = ", ".join(f"{name}={_text(value)}" for name, value in values.items())
        others = "the other" if len(values) == 2 else "the others"
        state = f"{count} are set" if count else "none is set"
        raise ValueError(f"{found}: {state}; set exactly one, and {others} to null")


def _text(value: int | None) -> str:
    return "null" if value is None else str(value)
