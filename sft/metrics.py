"""What is measured: where a step's time goes, token rates, and the shape of what was trained on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from sft.flops import TrainingFlops

PHASES = ("data_wait", "packing", "forward_backward", "optimizer")


class Measured(Protocol):
    """A microbatch, or what is known of one that another process trains."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sample; none in padding."""

    @property
    def slot_tokens(self) -> int:
        """Positions computed, padding included."""

    @property
    def real_tokens(self) -> int:
        """Positions that hold a token of a sample."""

    @property
    def loss_tokens(self) -> int:
        """Positions that count in the loss."""


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
        squared_length_sum: over the samples, of their squared lengths in tokens: what attention
            inside each sample costs.
    """

    slot_tokens: int = 0
    real_tokens: int = 0
    loss_tokens: int = 0
    samples: int = 0
    microbatches: int = 0
    squared_length_sum: int = 0

    @classmethod
    def of(cls, microbatches: Sequence[Measured]) -> Counts:
        """Count a step; padding for company takes slots and is no microbatch."""
        return cls(
            slot_tokens=sum(m.slot_tokens for m in microbatches),
            real_tokens=sum(m.real_tokens for m in microbatches),
            loss_tokens=sum(m.loss_tokens for m in microbatches),
            samples=sum(len(m.lengths) for m in microbatches),
            microbatches=sum(bool(m.lengths) for m in microbatches),
            squared_length_sum=sum(map(squared_lengths, microbatches)),
        )

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            slot_tokens=self.slot_tokens + other.slot_tokens,
            real_tokens=self.real_tokens + other.real_tokens,
            loss_tokens=self.loss_tokens + other.loss_tokens,
            samples=self.samples + other.samples,
            microbatches=self.microbatches + other.microbatches,
            squared_length_sum=self.squared_length_sum + other.squared_length_sum,
        )

    @property
    def fill(self) -> float:
        """Real tokens per slot."""
        return self.real_tokens / self.slot_tokens if self.slot_tokens else 0.0

    def model_flops(self, flops: TrainingFlops) -> int:
        """Model FLOPs, as :mod:`sft.flops` defines them."""
        return flops.count(
            tokens=self.real_tokens,
            squared_lengths=self.squared_length_sum,
            loss_tokens=self.loss_tokens,
        )

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
        skip_steps: first steps left out, also of those after a resume: caches are cold again.
        total: over all steps.
        timed: over the timed steps.
        phase_seconds: over the timed steps, by phase.
        timed_steps: how many are timed.
    """

    skip_steps: int
    total: Counts = field(default_factory=Counts)
    timed: Counts = field(default_factory=Counts)
    phase_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    timed_steps: int = 0
    _since_start: int = 0

    def add(self, counts: Counts, timer: PhaseTimer) -> None:
        """Take one step."""
        self._since_start += 1
        self.total += counts
        if self._since_start <= self.skip_steps:
            return
        self.timed_steps += 1
        self.timed += counts
        for name, seconds in timer.seconds.items():
            self.phase_seconds[name] += seconds

    def to_state(self) -> dict[str, Any]:
        """As JSON, for a checkpoint."""
        return {
            "timed_steps": self.timed_steps,
            "total": asdict(self.total),
            "timed": asdict(self.timed),
            "phase_seconds": dict(self.phase_seconds),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`to_state` gave."""
        self.timed_steps = state["timed_steps"]
        self.total, self.timed = Counts(**state["total"]), Counts(**state["timed"])
        self.phase_seconds = dict(state["phase_seconds"])

    @property
    def timed_seconds(self) -> float:
        """Seconds of the timed steps."""
        return sum(self.phase_seconds.values())

    def shares(self) -> dict[str, float]:
        """Each phase's share of the timed steps; empty where none was timed."""
        if not self.timed_seconds:
            return {}
        return {n: s / self.timed_seconds for n, s in self.phase_seconds.items()}


def squared_lengths(microbatch: Measured) -> int:
    """The sum of the squared lengths of a microbatch's samples, in tokens."""
    return sum(n * n for n in microbatch.lengths)


def attention_imbalance(microbatches: Sequence[Measured]) -> float:
    """How much dearer a step's dearest microbatch is than their mean, in attention.

    The largest sum of squared lengths over the mean one, minus 1; 0 where all are alike.
    """
    costs = [squared_lengths(m) for m in microbatches if m.lengths]
    return max(costs) * len(costs) / sum(costs) - 1


_LENGTH_BINS = 40


@dataclass
class Histograms:
    """How long the samples are that were trained on, and how many share a microbatch.

    Attributes:
        capacity: tokens; the longest sample.
        samples_by_length: int64 ``[40]``, in equal bins from 0 to the capacity, each with its
            lower edge and the last with both.
        microbatches_by_samples: microbatches by the number of samples in them.
        imbalances: sum over the steps of :func:`attention_imbalance`.
    """

    capacity: int
    samples_by_length: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(_LENGTH_BINS, dtype=np.int64)
    )
    microbatches_by_samples: Counter[int] = field(default_factory=Counter)
    imbalances: float = 0.0

    def add(self, microbatches: Sequence[Measured]) -> float:
        """Take one step; returns its attention imbalance."""
        lengths = [n for m in microbatches for n in m.lengths]
        self.samples_by_length += np.histogram(lengths, self.bin_edges)[0]
        self.microbatches_by_samples.update(len(m.lengths) for m in microbatches if m.lengths)
        imbalance = attention_imbalance(microbatches)
        self.imbalances += imbalance
        return imbalance

    def to_state(self) -> dict[str, Any]:
        """As JSON, for a checkpoint."""
        return {
            "samples_by_length": self.samples_by_length.tolist(),
            "microbatches_by_samples": sorted(self.microbatches_by_samples.items()),
            "imbalances": self.imbalances,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`to_state` gave."""
        self.samples_by_length = np.array(state["samples_by_length"], dtype=np.int64)
        self.microbatches_by_samples = Counter(dict(state["microbatches_by_samples"]))
        self.imbalances = state["imbalances"]

    @property
    def bin_edges(self) -> npt.NDArray[np.float64]:
        """Tokens, float64 ``[41]``."""
        return np.linspace(0, self.capacity, _LENGTH_BINS + 1)
