"""Learning-rate schedules: the ``schedule`` group. No torch until one is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """How the learning rate moves over a run; warm-up first, linear from 0.

    Step ``s`` of ``n`` (from 1) is trained with the rate at ``s``, so the peak is reached at the
    last warm-up step and the end at the last step.

    Attributes:
        warmup_fraction: share of the steps, ``[0, 1)``.
        min_lr_fraction: the lowest rate after warm-up, as a share of the peak.
    """

    warmup_fraction: float = 0.1
    min_lr_fraction: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_fraction < 1:
            raise ValueError(
                f"warmup_fraction={self.warmup_fraction}: must be at least 0 and below 1"
            )
        if not 0 <= self.min_lr_fraction <= 1:
            raise ValueError(f"min_lr_fraction={self.min_lr_fraction}: must be from 0 to 1")

    @property
    @abstractmethod
    def decay_style(self) -> str:
        """Megatron-Core's name for the shape of the decay."""

    def build(
        self, optimizer: Any, *, peak_lr: float, weight_decay: float, steps: int
    ) -> OptimizerParamScheduler:
        """The scheduler, set to the first step.

        Args:
            optimizer: Megatron-Core's.
            peak_lr: the rate after warm-up.
            weight_decay: held constant.
            steps: optimizer steps of the whole run, counted, not estimated.
        """
        from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

        min_lr = peak_lr * self.min_lr_fraction
        for group in optimizer.param_groups:
            group["min_lr"] = min_lr  # the optimizer left it unset, and it goes before ours
        scheduler = OptimizerParamScheduler(
            optimizer,
            init_lr=0.0,
            max_lr=peak_lr,
            min_lr=min_lr,
            lr_warmup_steps=min(round(steps * self.warmup_fraction), steps - 1),
            lr_decay_steps=steps,
            lr_decay_style=self.decay_style,
            start_wd=weight_decay,
            end_wd=weight_decay,
            wd_incr_steps=steps,
            wd_incr_style="constant",
        )
        # Megatron-Core counts from step 0, whose rate is 0 under warm-up: a step for nothing.
        scheduler.step(increment=1)
        return scheduler


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Half a cosine from the peak down to the lowest rate."""

    @property
    def decay_style(self) -> str:
        """Megatron-Core's name."""
        return "cosine"


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """A straight line from the peak down to the lowest rate."""

    @property
    def decay_style(self) -> str:
        """Megatron-Core's name."""
        return "linear"


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The peak rate throughout, after warm-up."""

    min_lr_fraction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_lr_fraction != 1.0:
            raise ValueError(
                f"min_lr_fraction={self.min_lr_fraction}: a constant schedule has no lower end; "
                "remove it or use schedule=cosine or schedule=linear"
            )

    @property
    def decay_style(self) -> str:
        """Megatron-Core's name."""
        return "constant"
