"""What is measured: where a step's time goes, and three token rates, each as defined."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from data.packing.microbatches import Microbatch

PHASES = ("data_wait", "packing", "forward_backward", "optimizer")


class PhaseTimer:
    """Wall-clock seconds of a step by phase; a phase ends when the device has finished it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure one phase."""
        start = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds[name] += time.perf_counter() - start

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return sum(self.seconds.values())


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a step, or a run of steps, consisted of.

    Attributes:
        slot_tokens: all positions computed, padding included.
        real_tokens: positions that hold a token of a sample.
        loss_tokens: positions that count in the loss.
        samples: conversations.
        microbatches: rows or rectangles.
    """

    slot_tokens: int = 0
    real_tokens: int = 0
    loss_tokens: int = 0
    samples: int = 0
    microbatches: int = 0

    @classmethod
    def of(cls, microbatches: Sequence[Microbatch]) -> Counts:
        """Count a step."""
        return cls(
            slot_tokens=sum(m.slot_tokens for m in microbatches),
            real_tokens=sum(m.real_tokens for m in microbatches),
            loss_tokens=sum(m.loss_tokens for m in microbatches),
            samples=sum(len(m.source_ids) for m in microbatches),
            microbatches=len(microbatches),
        )

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            slot_tokens=self.slot_tokens + other.slot_tokens,
            real_tokens=self.real_tokens + other.real_tokens,
            loss_tokens=self.loss_tokens + other.loss_tokens,
            samples=self.samples + other.samples,
            microbatches=self.microbatches + other.microbatches,
        )

    @property
    def fill(self) -> float:
        """Real tokens per slot."""
        return self.real_tokens / self.slot_tokens if self.slot_tokens else 0.0

    def rates(self, seconds: float) -> dict[str, float]:
        """The three rates, tokens per second; empty for no time."""
        if seconds <= 0:
            return {}
        return {
            "slot_tokens_per_s": self.slot_tokens / seconds,
            "real_tokens_per_s": self.real_tokens / seconds,
            "loss_tokens_per_s": self.loss_tokens / seconds,
        }


@dataclass
class Speed:
    """Counts and seconds over the steps that are timed: all but the first few.

    Attributes:
        skip_steps: first steps left out.
        total: over all steps.
        timed: over the timed steps.
        phase_seconds: over the timed steps, by phase.
    """

    skip_steps: int
    total: Counts = field(default_factory=Counts)
    timed: Counts = field(default_factory=Counts)
    phase_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    steps: int = 0

    def add(self, counts: Counts, timer: PhaseTimer) -> None:
        """Take one step."""
        self.steps += 1
        self.total += counts
        if self.steps <= self.skip_steps:
            return
        self.timed += counts
        for name, seconds in timer.seconds.items():
            self.phase_seconds[name] += seconds

    @property
    def timed_steps(self) -> int:
        """How many steps are timed."""
        return max(0, self.steps - self.skip_steps)

    @property
    def timed_seconds(self) -> float:
        """Seconds of the timed steps."""
        return sum(self.phase_seconds.values())

    def shares(self) -> dict[str, float]:
        """Each phase's share of the timed steps; empty where none was timed."""
        if not self.timed_seconds:
            return {}
        return {n: s / self.timed_seconds for n, s in self.phase_seconds.items()}


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory this process has held: the device's where there is one, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux counts in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
