"""The parts of a run that hold tensors: model, optimizer, schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)

from models import lora
from models.gpt import KernelPath, build_gpt, choose_kernel_path
from models.hf.load import check_weights, load_weights
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
        frozen_parameters: how many are not, under LoRA.
    """

    model: Any
    optimizer: Any
    scheduler: Any
    parameters: int
    frozen_parameters: int


def kernel_path(config: RunConfig) -> tuple[KernelPath, str]:
    """Whose kernels this run uses, and why.

    Raises:
        ConfigError: ``attention`` asks for what this machine does not have.
    """
    try:
        return choose_kernel_path(config.attention.value)
    except ValueError as error:
        raise ConfigError(f"attention={config.attention.value}: {error}") from error


def check_initial_weights(config: RunConfig) -> None:
    """Refuse weights that are not the model's, before a run's directory is made for them.

    Raises:
        ConfigError: naming the tensors.
    """
    if config.model.init_from is not None:
        try:
            check_weights(config.model)
        except ValueError as error:
            raise ConfigError(f"model.{error}") from error


def build_trainee(
    config: RunConfig, *, tokenizer_vocab_size: int, kernels: KernelPath, steps: int
) -> Trainee:
    """Build model, optimizer and schedule; a parallel session must be open.

    Args:
        config: the run's.
        tokenizer_vocab_size: ids the tokenizer may produce.
        kernels: whose layers.
        steps: optimizer steps of the run, for the schedule.

    Raises:
        ConfigError: ``lora`` does not fit the parallel layout.
    """
    gpt = build_gpt(config.model, tokenizer_vocab_size=tokenizer_vocab_size, kernels=kernels)
    if config.model.init_from is not None:
        load_weights(gpt, config.model)
    _attach_adapters(gpt, config)
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
        parameters=sum(p.numel() for p in gpt.parameters() if p.requires_grad),
        frozen_parameters=sum(p.numel() for p in gpt.parameters() if not p.requires_grad),
    )


def _attach_adapters(gpt: Any, config: RunConfig) -> None:
    if config.lora.rank is None:
        return
    try:
        lora.attach(gpt, config.lora, seed=config.seed)
    except ValueError as error:
        raise ConfigError(f"lora.{error}") from error
