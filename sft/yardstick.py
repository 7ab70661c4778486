"""What speeds are held against, and what memory a process has held."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

import torch

from sft.flops import TrainingFlops, peak_flops_per_s
from sft.metrics import Counts


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """What speeds are held against.

    Attributes:
        flops: of the model that is trained.
        peak_flops_per_s: of the device; None where it is not known.
        started: when the run did, on the clock of ``time.perf_counter``.
    """

    flops: TrainingFlops
    peak_flops_per_s: float | None
    started: float

    @property
    def wall_seconds(self) -> float:
        """Seconds since the run started."""
        return time.perf_counter() - self.started

    def speed(self, counts: Counts, seconds: float) -> dict[str, float | None]:
        """Model FLOPs per second, and which part of the peak that is; null where unknown."""
        per_s = counts.model_flops(self.flops) / seconds if seconds > 0 else None
        peak = self.peak_flops_per_s
        return {
            "model_flops_per_s": per_s,
            "mfu": None if per_s is None or peak is None else per_s / peak,
        }


def device_peak(device: torch.device, model: torch.nn.Module, devices: int = 1) -> float | None:
    """The peak FLOP/s of devices at the precision of the model's weights; None if unknown.

    Args:
        device: one of them.
        model: what runs on them.
        devices: how many of its kind there are.
    """
    if device.type != "cuda":
        return None
    precision = str(next(model.parameters()).dtype).removeprefix("torch.")
    peak = peak_flops_per_s(torch.cuda.get_device_name(device), precision)
    return None if peak is None else peak * devices


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory this process has held: the device's where there is one, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux counts in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
