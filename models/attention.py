"""Causal attention over packed rows in plain PyTorch, for machines without Transformer Engine.

Shapes: T positions of a row, h query heads, g key and value heads, d channels per head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from models.context_parallel import attend_shared_segments


class SegmentAttention(MegatronModule):  # type: ignore[misc]
    """Core attention that computes each segment of a THD row on its own.

    A dense block-diagonal mask would cost ``T * T`` where this costs the sum of the segments'
    squares; over a row of twenty segments the mask is several times slower. Without packed
    parameters it is ordinary causal attention over ``[s, b, h, d]``. Under context parallelism T
    and s are this rank's part.

    Takes Megatron-Core's place for ``core_attention`` in a layer spec.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        softmax_scale: float | None = None,
        **_unused: Any,
    ) -> None:
        super().__init__(config=config)
        assert attn_mask_type in (AttnMaskType.causal, AttnMaskType.padding_causal)
        assert attention_type == "self"
        self.layer_number = max(1, layer_number)
        self.cp_group = parallel_state.get_context_parallel_group()
        self.softmax_scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            query: ``[T, h, d]`` with packed parameters, else ``[s, b, h, d]``.
            key: ``[T, g, d]`` or ``[s, b, g, d]``.
            value: like ``key``.
            attention_mask: must be None; the mask is causal.
            attn_mask_type: as in the constructor.
            attention_bias: must be None.
            packed_seq_params: the row's boundaries.

        Returns:
            ``[T, h * d]`` or ``[s, b, h * d]``.
        """
        assert attention_mask is None and attention_bias is None
        if self.cp_group.size() > 1:
            return self._shared(query, key, value, packed_seq_params)
        if packed_seq_params is None:
            # [s, b, heads, d] -> [b, heads, s, d]
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            out = causal_attention(q, k, v, self.softmax_scale)
            return out.permute(2, 0, 1, 3).flatten(2)
        lengths = segment_lengths(packed_seq_params)
        out = attend_segments(query, key, value, lengths, self.softmax_scale)
        return out.flatten(1)

    def _shared(
        self, query: Tensor, key: Tensor, value: Tensor, params: PackedSeqParams | None
    ) -> Tensor:
        """The same where each rank has its part of the positions."""
        if params is None:
            width = query.shape[0] * self.cp_group.size()
            lengths = [(width, width)]
        else:
            lengths = segment_lengths(params)
            query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        out = attend_shared_segments(query, key, value, lengths, self.softmax_scale, self.cp_group)
        return out.flatten(2) if params is None else out.flatten(1)


def segment_lengths(params: PackedSeqParams) -> list[tuple[int, int]]:
    """The row's segments as (real length, padded length), from its boundaries."""
    real = params.cu_seqlens_q
    padded = real if params.cu_seqlens_q_padded is None else params.cu_seqlens_q_padded
    return list(zip(real.diff().tolist(), padded.diff().tolist(), strict=True))


def attend_segments(
    query: Tensor, key: Tensor, value: Tensor, lengths: list[tuple[int, int]], scale: float
) -> Tensor:
    """Causal attention inside each segment of a row; positions of padding get zeros.

    Args:
        query: ``[T, h, d]``.
        key: ``[T, g, d]``.
        value: ``[T, g, d]``.
        lengths: (real, padded) per segment; the padded lengths sum to T.
        scale: multiplies the scores.

    Returns:
        ``[T, h, d]``.
    """
    # split, not slicing: the backward of a split is one concatenation, that of n slices is n
    # tensors of the whole row.
    padded = [extent for _, extent in lengths]
    parts = zip(*(torch.split(x, padded) for x in (query, key, value)), lengths, strict=True)
    outs = []
    for q, k, v, (real, extent) in parts:
        if real < extent:
            q, k, v = q[:real], k[:real], v[:real]
        # [n, heads, d] -> [1, heads, n, d]
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        out = causal_attention(q, k, v, scale).squeeze(0).transpose(0, 1)
        outs.append(out)
        if real < extent:
            outs.append(out.new_zeros(extent - real, *out.shape[1:]))
    return torch.cat(outs)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Causal attention, ``[b, h, n, d]`` with ``[b, g, n, d]``; query heads share groups."""
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=grouped
    )
