"""Initial weights that do not depend on how a model is shared out over ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from torch import Tensor

# The layers whose outputs are added to the residual stream; each layer has two.
_OUTPUT_LAYERS = (".linear_proj.weight", ".linear_fc2.weight")


@torch.no_grad()
def draw_weights(chunks: Sequence[Any], seed: int) -> None:
    """Fill the matrices of a model, in place; norms stay at 1 and biases at 0.

    Normally distributed, with ``init_method_std``; of layers that write to the residual stream
    divided by the root of twice the number of layers (Radford et al. 2019, section 2.3). Every
    matrix is drawn whole, by its name and the seed, and each rank takes its part: a model is the
    same on one rank and on many.

    Args:
        chunks: this rank's GPTModels, bare.
        seed: of all matrices.
    """
    for chunk in chunks:
        config = chunk.config
        for part in _parts(chunk.sharded_state_dict()):
            if not isinstance(part.data, Tensor):
                continue
            if part.key.endswith(".bias"):
                part.data.zero_()
            if part.data.dim() < 2:
                continue
            std = config.init_method_std
            if part.key.endswith(_OUTPUT_LAYERS):
                std /= math.sqrt(2 * config.num_layers)
            part.data.copy_(_drawn(part, std, seed))


def _parts(sharded: Any) -> Iterator[ShardedTensor]:
    values = sharded.values() if isinstance(sharded, dict) else sharded
    for value in values:
        if isinstance(value, dict | list | tuple):
            yield from _parts(value)
        elif isinstance(value, ShardedTensorFactory):
            # A matrix that holds two, gate and up projection: its parts are views of the two.
            yield from _parts(value.build())
        elif isinstance(value, ShardedTensor):
            yield value


def _drawn(part: ShardedTensor, std: float, seed: int) -> Tensor:
    # In front of the matrix's own axes stand its layer and its expert.
    which = part.global_offset[: part.prepend_axis_num]
    shape = part.global_shape[part.prepend_axis_num :]
    offset = part.global_offset[part.prepend_axis_num :]
    key = f"{seed}/{part.key}/{'/'.join(map(str, which))}"
    generator = torch.Generator().manual_seed(
        int.from_bytes(blake2b(key.encode(), digest_size=7).digest())
    )
    whole = torch.empty(shape).normal_(std=std, generator=generator)
    mine = tuple(slice(o, o + n) for o, n in zip(offset, part.data.shape, strict=True))
    return whole[mine]
