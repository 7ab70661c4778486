"""Which parameter of Megatron-Core is which tensor of Hugging Face: one table, read both ways.

The architectures in ``families.py`` name their tensors alike. Megatron-Core fuses some of them:

- query, key and value into ``linear_qkv``, whose rows go group by group: the query heads that share
  a key head, that key head, its value head;
- gate and up projection into ``linear_fc1``; of each tensor-parallel rank first its rows of the
  gate, then its rows of the up projection.

Letters: h hidden size, f feed-forward size, n query heads, g key heads, d channels per head,
v ids, R tensor-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from models.shapes import GPTShape


class Layout(Enum):
    """How a parameter is made of its tensors, and shared out over tensor-parallel ranks."""

    WHOLE = "every rank has all of it"
    VOCAB = "rows below are padding; each rank has v/R rows"
    COLUMNS = "each rank has 1/R of the columns"
    QKV = "three tensors, fused by group; each rank has 1/R of the rows"
    GATE_UP = "two tensors; each rank has 1/R of the rows of both"


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One parameter of the model.

    Attributes:
        names: in Megatron-Core: with its own layers; with Transformer Engine's, where that differs.
        tensors: Hugging Face's names and shapes, in the order in which they are fused.
        layout: how the one is made of the others.
    """

    names: tuple[str, ...]
    tensors: Mapping[str, tuple[int, ...]]
    layout: Layout


def weights(shape: GPTShape, vocab_size: int) -> Iterator[Weight]:
    """Every parameter of a model of this shape, from its input to its output.

    Args:
        shape: the model's.
        vocab_size: rows of the embedding without padding.
    """
    h = shape.hidden_size
    yield Weight(
        names=("embedding.word_embeddings.weight",),
        tensors={"model.embed_tokens.weight": (vocab_size, h)},
        layout=Layout.VOCAB,
    )
    for layer in range(shape.num_layers):
        yield from _layer(shape, f"decoder.layers.{layer}", f"model.layers.{layer}")
    yield _norm(("decoder.final_layernorm.weight",), "model.norm.weight", h)
    if not shape.tie_embeddings:
        yield Weight(
            names=("output_layer.weight",),
            tensors={"lm_head.weight": (vocab_size, h)},
            layout=Layout.VOCAB,
        )


def _layer(shape: GPTShape, ours: str, theirs: str) -> Iterator[Weight]:
    h, f, d = shape.hidden_size, shape.ffn_hidden_size, shape.channels_per_head
    query, key = shape.num_attention_heads * d, shape.num_query_groups * d
    attention, mlp = f"{ours}.self_attention", f"{ours}.mlp"
    # Transformer Engine's linear layers hold the norm in front of them.
    norms = (f"{ours}.input_layernorm.weight", f"{attention}.linear_qkv.layer_norm_weight")
    yield _norm(norms, f"{theirs}.input_layernorm.weight", h)
    rows = {"q_proj": query, "k_proj": key, "v_proj": key}
    yield Weight(
        names=(f"{attention}.linear_qkv.weight",),
        tensors={f"{theirs}.self_attn.{name}.weight": (n, h) for name, n in rows.items()},
        layout=Layout.QKV,
    )
    if shape.qkv_bias:
        yield Weight(
            names=(f"{attention}.linear_qkv.bias",),
            tensors={f"{theirs}.self_attn.{name}.bias": (n,) for name, n in rows.items()},
            layout=Layout.QKV,
        )
    if shape.qk_norm:
        yield _norm((f"{attention}.q_layernorm.weight",), f"{theirs}.self_attn.q_norm.weight", d)
        yield _norm((f"{attention}.k_layernorm.weight",), f"{theirs}.self_attn.k_norm.weight", d)
    yield Weight(
        names=(f"{attention}.linear_proj.weight",),
        tensors={f"{theirs}.self_attn.o_proj.weight": (h, query)},
        layout=Layout.COLUMNS,
    )
    norms = (f"{ours}.pre_mlp_layernorm.weight", f"{mlp}.linear_fc1.layer_norm_weight")
    yield _norm(norms, f"{theirs}.post_attention_layernorm.weight", h)
    yield Weight(
        names=(f"{mlp}.linear_fc1.weight",),
        tensors={
            f"{theirs}.mlp.gate_proj.weight": (f, h),
            f"{theirs}.mlp.up_proj.weight": (f, h),
        },
        layout=Layout.GATE_UP,
    )
    yield Weight(
        names=(f"{mlp}.linear_fc2.weight",),
        tensors={f"{theirs}.mlp.down_proj.weight": (h, f)},
        layout=Layout.COLUMNS,
    )


def _norm(names: tuple[str, ...], theirs: str, channels: int) -> Weight:
    return Weight(names=names, tensors={theirs: (channels,)}, layout=Layout.WHOLE)


def parameter_of(weight: Weight, parameters: Mapping[str, Any]) -> str:
    """The name under which a model has this parameter, whichever layers it is built of."""
    found = [name for name in weight.names if name in parameters]
    assert len(found) == 1, f"{weight.names}: {len(found)} in the model"
    return found[0]


def fuse(
    weight: Weight, tensors: Sequence[Tensor], groups: int, *, rows: int, rank: int, ranks: int
) -> Tensor:
    """One rank's part of a parameter.

    Args:
        weight: which one.
        tensors: Hugging Face's, whole, in the order of ``weight.tensors``.
        groups: key heads of the model, g.
        rows: of the embedding with padding; of other parameters it makes no difference.
        rank: tensor-parallel.
        ranks: how many of them there are.
    """
    match weight.layout:
        case Layout.VOCAB:
            padding = tensors[0].new_zeros(rows - tensors[0].shape[0], *tensors[0].shape[1:])
            return torch.cat((tensors[0], padding)).chunk(ranks)[rank]
        case Layout.COLUMNS:
            return tensors[0].chunk(ranks, dim=1)[rank]
        case Layout.QKV:
            # [g, n/g * d, ...], [g, d, ...], [g, d, ...] -> [g * (n/g + 2) * d, ...]
            by_group = [_grouped(x, groups) for x in tensors]
            return torch.cat(by_group, dim=1).flatten(0, 1).chunk(ranks)[rank]
        case Layout.GATE_UP:
            return torch.cat([x.chunk(ranks)[rank] for x in tensors])
    return tensors[0]


def take_apart(weight: Weight, parts: Sequence[Tensor], groups: int) -> list[Tensor]:
    """The tensors of Hugging Face that a parameter is made of; the reverse of :func:`fuse`.

    Args:
        weight: which one.
        parts: of every tensor-parallel rank, in order.
        groups: key heads of the model, g.

    Returns:
        In the order of ``weight.tensors``, without padding; some are views of the parts.
    """
    match weight.layout:
        case Layout.VOCAB:
            (ids, _) = next(iter(weight.tensors.values()))
            return [torch.cat(list(parts))[:ids] if len(parts) > 1 else parts[0][:ids]]
        case Layout.COLUMNS:
            return [torch.cat(list(parts), dim=1)]
        case Layout.QKV:
            by_group = _grouped(torch.cat(list(parts)), groups)
            sizes = [size[0] // groups for size in weight.tensors.values()]
            return [x.flatten(0, 1) for x in torch.split(by_group, sizes, dim=1)]
        case Layout.GATE_UP:
            halves = [part.chunk(2) for part in parts]
            return [torch.cat([half[i] for half in halves]) for i in range(2)]
    return [parts[0]]


def _grouped(tensor: Tensor, groups: int) -> Tensor:
    """``[g * x, ...]`` as ``[g, x, ...]``."""
    return tensor.reshape(groups, -1, *tensor.shape[1:])
