"""The parts of a run that hold tensors: model, optimizer, schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)

from models.gpt import KernelPath, build_gpt, choose_kernel_path
from sft.config import RunConfig
from sft.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """What is trained, and what trains it.

    Attributes:
        model: GPTModel wrapped for data parallelism.
        optimizer: Megatron-Core's.
        scheduler: Megatron-Core's, set to the first step.
        parameters: how many are trained.
    """

    model: Any
    optimizer: Any
    scheduler: Any
    parameters: int


def kernel_path(config: RunConfig) -> tuple[KernelPath, str]:
    """Whose kernels this run uses, and why.

    Raises:
        ConfigError: ``attention`` asks for what this machine does not have.
    """
    try:
        return choose_kernel_path(config.attention.value)
    except ValueError as error:
        raise ConfigError(f"attention={config.attention.value}: {error}") from error


def build_trainee(
    config: RunConfig, *, tokenizer_vocab_size: int, kernels: KernelPath, steps: int
) -> Trainee:
    """Build model, optimizer and schedule; a parallel session must be open.

    Args:
        config: the run's.
        tokenizer_vocab_size: ids the tokenizer may produce.
        kernels: whose layers.
        steps: optimizer steps of the run, for the schedule.
    """
    gpt = build_gpt(config.model, tokenizer_vocab_size=tokenizer_vocab_size, kernels=kernels)
    model = DistributedDataParallel(gpt.config, DistributedDataParallelConfig(), gpt)
    optimizer = config.optimizer.build(model)
    gpt.config.finalize_model_grads_func = finalize_model_grads
    gpt.config.grad_scale_func = optimizer.scale_loss
    scheduler = config.schedule.build(
        optimizer,
        peak_lr=config.optimizer.lr,
        weight_decay=config.optimizer.weight_decay,
        steps=steps,
    )
    return Trainee(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        parameters=sum(p.numel() for p in gpt.parameters() if isinstance(p, torch.Tensor)),
    )
