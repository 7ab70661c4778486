"""Optimizers: the ``optimizer`` group. No torch until one is built."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatron.core.optimizer import MegatronOptimizer


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """An optimizer and its settings.

    Attributes:
        lr: peak learning rate.
        weight_decay: decoupled; biases and norms are exempt.
        clip_grad_norm: the gradient is scaled down to this norm; 0: never.
    """

    lr: float
    weight_decay: float = 0.0
    clip_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr={self.lr}: must be above 0 and finite")
        for name in ("weight_decay", "clip_grad_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 0 and finite")

    @abstractmethod
    def build(self, chunks: Sequence[Any]) -> MegatronOptimizer:
        """Megatron-Core's optimizer for the chunks of a model wrapped for data parallelism."""


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019).

    Attributes:
        beta1: decay of the mean of gradients.
        beta2: decay of the mean of squared gradients.
        epsilon: added to the root of the latter.
    """

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 0 and below 1")
        if not self.epsilon > 0:
            raise ValueError(f"epsilon={self.epsilon}: must be above 0")

    def build(self, chunks: Sequence[Any]) -> MegatronOptimizer:
        """Megatron-Core's Adam; in fp32 it is torch's AdamW on the model's own weights."""
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        config = OptimizerConfig(
            optimizer="adam",
            lr=self.lr,
            weight_decay=self.weight_decay,
            adam_beta1=self.beta1,
            adam_beta2=self.beta2,
            adam_eps=self.epsilon,
            # No limit rather than none: Megatron-Core measures the norm only where it may clip.
            clip_grad=self.clip_grad_norm or math.inf,
            use_distributed_optimizer=chunks[0].ddp_config.use_distributed_optimizer,
        )
        return get_megatron_optimizer(config, list(chunks))
