"""The parts of a run that hold tensors: model, optimizer, schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from torch import Tensor

from models import lora
from models.gpt import KernelPath, build_chunks, choose_kernel_path
from models.hf.load import check_weights, load_weights
from sft.config import RunConfig
from sft.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """What is trained, and what trains it.

    Attributes:
        chunks: GPTModels wrapped for data parallelism, one for each virtual stage of this rank.
        optimizer: Megatron-Core's.
        scheduler: Megatron-Core's, set to the first step.
        parameters: how many are trained, of all ranks together.
        frozen_parameters: how many are not, under LoRA.
    """

    chunks: list[Any]
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
    config: RunConfig,
    *,
    tokenizer_vocab_size: int,
    kernels: KernelPath,
    steps: int,
    initial_weights: bool = True,
) -> Trainee:
    """Build model, optimizer and schedule; a parallel session must be open.

    Args:
        config: the run's.
        tokenizer_vocab_size: ids the tokenizer may produce.
        kernels: whose layers.
        steps: optimizer steps of the run, for the schedule.
        initial_weights: load those of ``model.init_from``; without, a checkpoint's are to come.

    Raises:
        ConfigError: ``lora`` does not fit the parallel layout.
    """
    bare = build_chunks(
        config.model,
        tokenizer_vocab_size=tokenizer_vocab_size,
        kernels=kernels,
        seed=config.seed,
        sequence_parallel=config.parallel.sp,
    )
    if config.model.init_from is not None and initial_weights:
        load_weights(bare, config.model)
    _attach_adapters(bare, config)
    chunks = wrapped(bare, distributed_optimizer=config.parallel.distributed_optimizer)
    optimizer = config.optimizer.build(chunks)
    for chunk in bare:
        chunk.config.grad_scale_func = optimizer.scale_loss
    scheduler = config.schedule.build(
        optimizer,
        peak_lr=config.optimizer.lr,
        weight_decay=config.optimizer.weight_decay,
        steps=steps,
    )
    return Trainee(
        chunks=chunks,
        optimizer=optimizer,
        scheduler=scheduler,
        parameters=count_parameters(bare, trained=True),
        frozen_parameters=count_parameters(bare, trained=False),
    )


def wrapped(chunks: Sequence[Any], *, distributed_optimizer: bool = False) -> list[Any]:
    """Chunks of a model, each wrapped for data parallelism, as the schedules take them.

    Args:
        chunks: GPTModels, bare.
        distributed_optimizer: gradients are left where each rank's part of the optimizer is.
    """
    settings = DistributedDataParallelConfig(use_distributed_optimizer=distributed_optimizer)
    for chunk in chunks:
        chunk.config.finalize_model_grads_func = finalize_model_grads
    return [DistributedDataParallel(chunk.config, settings, chunk) for chunk in chunks]


def count_parameters(chunks: Sequence[Any], *, trained: bool) -> int:
    """Parameters of the whole model, whatever of it is on this rank.

    Args:
        chunks: GPTModels, bare; every rank calls this.
        trained: count those that have a gradient, or those that have none.
    """
    count = sum(
        _share(chunk, parameter)
        for chunk in chunks
        for parameter in chunk.parameters()
        if parameter.requires_grad is trained
    )
    total = torch.tensor(count, device=torch.cuda.current_device())
    dist.all_reduce(total, group=parallel_state.get_pipeline_model_parallel_group())
    return int(total)


def _share(chunk: Any, parameter: Tensor) -> int:
    """Elements of a parameter over the ranks of a pipeline's stage."""
    if chunk.post_process and not chunk.pre_process and chunk.share_embeddings_and_output_weights:
        if parameter is chunk.output_layer.weight:
            return 0  # the first stage has it too
    is_split = getattr(parameter, "tensor_model_parallel", False)
    ranks: int = parallel_state.get_tensor_model_parallel_world_size() if is_split else 1
    return parameter.numel() * ranks


def _attach_adapters(chunks: Sequence[Any], config: RunConfig) -> None:
    if config.lora.rank is None:
        return
    try:
        lora.attach(chunks, config.lora, seed=config.seed)
    except ValueError as error:
        raise ConfigError(f"lora.{error}") from error
