"""LoRA on a whole model: adapters on the targets, everything else frozen (Hu et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from models.gpt import unwrapped
from models.lora_layers import (
    AdaptedLinear,
    Adapter,
    FusedRows,
    LowRankBranch,
    adapt,
    merge_branch,
)
from models.lora_settings import LoRASettings


@dataclass(frozen=True)
class _Place:
    """Where a linear layer stands in a transformer layer, and which matrices its weight holds."""

    block: str
    linear: str
    matrices: tuple[str, ...]
    column: bool


_PLACES = (
    _Place("self_attention", "linear_qkv", ("q_proj", "k_proj", "v_proj"), column=True),
    _Place("self_attention", "linear_proj", ("o_proj",), column=False),
    _Place("mlp", "linear_fc1", ("gate_proj", "up_proj"), column=True),
    _Place("mlp", "linear_fc2", ("down_proj",), column=False),
)


def attach(chunks: Sequence[Any], settings: LoRASettings, *, seed: int = 0) -> None:
    """Freeze a model and give its target matrices adapters, in place.

    A is drawn as torch draws a linear layer's weight (Kaiming-uniform with a = sqrt 5), B is 0: the
    model computes what it did before. Which numbers A gets depends on the seed, the layer and the
    matrix, and not on the parallel layout or on the other targets.

    Args:
        chunks: GPTModels, bare: they must not be wrapped for data parallelism yet, or gradients
            and optimizer state of the frozen weights are kept too.
        settings: with a rank.
        seed: of the A.

    Raises:
        ValueError: the parallel layout cuts through a key head.
    """
    assert settings.rank is not None, "LoRA is off"
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    for model in chunks:
        groups = model.config.num_query_groups
        if groups % ranks:
            raise ValueError(
                f"rank={settings.rank}: LoRA needs whole key and value heads on every "
                f"tensor-parallel rank, and {groups} cannot be shared out over {ranks}; use a "
                "number of ranks that divides it, or lora=none"
            )
        for parameter in model.parameters():
            parameter.requires_grad = False
        for layer in model.decoder.layers:
            _adapt_layer(layer, model.config, settings, seed)


def _adapt_layer(layer: Any, config: Any, settings: LoRASettings, seed: int) -> None:
    for place in _PLACES:
        if set(settings.matrices) & set(place.matrices):
            linear = getattr(getattr(layer, place.block), place.linear)
            # Counted from the first layer of the whole model, on every stage of a pipeline.
            key = f"{seed}/{layer.layer_number}"
            branch = _new_branch(linear.weight, place, config, settings, key)
            adapt(linear, branch.train(linear.training))


def merge(model: Any) -> None:
    """Fold the adapters into the weights, in fp32, and remove them; weights stay frozen.

    For a model that is done training: an optimizer built before still holds the adapters.
    """
    for module in list(model.modules()):
        if isinstance(module, AdaptedLinear):
            merge_branch(module)


def branches(model: Any) -> Iterator[tuple[int, LowRankBranch]]:
    """The branches of a chunk, bare or wrapped, each with its layer's number from 0."""
    for layer in unwrapped(model).decoder.layers:
        for place in _PLACES:
            linear = getattr(getattr(layer, place.block), place.linear)
            if isinstance(linear, AdaptedLinear):
                yield layer.layer_number - 1, linear.lora


def _new_branch(
    weight: Tensor, place: _Place, config: Any, settings: LoRASettings, key: str
) -> LowRankBranch:
    """Fresh adapters for one layer, where its weight is; ``key`` seeds them."""
    assert settings.rank is not None
    group = parallel_state.get_tensor_model_parallel_group()
    rows = _fused_rows(place, config, weight.shape[0], group.size())
    adapters = {}
    for name in place.matrices:
        if name in settings.matrices:
            # Where A is split, each rank draws the whole and takes its part.
            parts = 1 if place.column else group.size()
            drawn = _drawn(f"{key}/{name}", settings.rank, parts * weight.shape[1])
            a = drawn.chunk(parts, dim=1)[0 if place.column else group.rank()]
            b = torch.zeros(rows.groups * rows.widths[name], settings.rank)
            # A copy: a part would keep the whole alive.
            adapters[name] = Adapter(a.to(weight, copy=True).contiguous(), b.to(weight))
    return LowRankBranch(
        adapters,
        rows=rows,
        scale=settings.scale,
        dropout=settings.dropout,
        column=place.column,
        sequence_parallel=config.sequence_parallel and group.size() > 1,
        tp_group=group,
    )


def _fused_rows(place: _Place, config: Any, rows: int, ranks: int) -> FusedRows:
    """How this rank's output of a linear layer is made up of its matrices."""
    if place.linear == "linear_qkv":
        # [group: the query heads that share a key head, the key head, the value head].
        heads = config.num_attention_heads // config.num_query_groups
        channels = (heads * config.kv_channels, config.kv_channels, config.kv_channels)
        widths = dict(zip(place.matrices, channels, strict=True))
        fused = FusedRows(config.num_query_groups // ranks, widths)
    else:
        fused = FusedRows(1, dict.fromkeys(place.matrices, rows // len(place.matrices)))
    assert fused.groups * sum(fused.widths.values()) == rows, "not the layout this was written for"
    return fused


def _drawn(key: str, rank: int, inputs: int) -> Tensor:
    """Kaiming-uniform with a = sqrt 5: evenly from -1 / sqrt(inputs) to 1 / sqrt(inputs)."""
    seed = int.from_bytes(blake2b(key.encode(), digest_size=7).digest())
    generator = torch.Generator().manual_seed(seed)
    bound = 1 / math.sqrt(inputs)
    return torch.empty(rank, inputs).uniform_(-bound, bound, generator=generator)
