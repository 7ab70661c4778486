"""Rotary positions: a model's frequencies, and one table per row for packed rows."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from models.context_parallel import zigzag_positions
from models.shapes import GPTShape


def rotary_frequencies(shape: GPTShape) -> Tensor:
    """What each pair of channels turns by per position: float32 ``[head_dim / 2]``, in radians.

    Megatron-Core's own embedding knows Llama 3.1's scaling with fixed constants and YaRN as another
    kind of embedding; here one formula serves every model and both kernel paths.
    """
    channels = torch.arange(0, shape.channels_per_head, 2, dtype=torch.float32)
    frequencies = 1.0 / (shape.rotary_base ** (channels / shape.channels_per_head))
    if shape.rope_scaling is None:
        return frequencies
    return shape.rope_scaling.scale(frequencies, shape.rotary_base)


class RowRotaryEmbedding(RotaryEmbedding):  # type: ignore[misc]
    """Rotary embedding that gives a packed row its own table, restarting at each segment.

    Given a table as long as the longest segment, Megatron-Core's unfused rotary turns a row one
    segment at a time and writes each result into the whole row in place; the backward of n such
    writes copies the whole row n times. Given a table as long as the row, it turns the row at
    once. This class makes that table: position ``i`` of a segment gets the angles of ``i``. Under
    context parallelism it is the table of the whole row, of which Megatron-Core takes each rank's.

    Not for fused kernels, which expect the short table.
    """

    _boundaries: Tensor | None = None

    def get_rotary_seq_len(
        self,
        inference_context: Any,
        transformer: Any,
        transformer_input: Any,
        transformer_config: Any,
        packed_seq_params: PackedSeqParams | None = None,
        **kwargs: Any,
    ) -> int:
        """Note the row's boundaries on the way; Megatron-Core asks this just before the table."""
        params = packed_seq_params
        if params is None:
            self._boundaries = None
        elif params.cu_seqlens_q_padded is not None:
            self._boundaries = params.cu_seqlens_q_padded
        else:
            self._boundaries = params.cu_seqlens_q
        length: int = super().get_rotary_seq_len(
            inference_context, transformer, transformer_input, transformer_config, params, **kwargs
        )
        return length

    def forward(self, max_seq_len: int, *args: Any, **kwargs: Any) -> Tensor:
        """The angles: ``[T, 1, 1, d]`` for a packed row, this rank's of ``max_seq_len`` without."""
        # Without its own share of ranks, which pins memory where there is no device.
        table: Tensor = super().forward(max_seq_len, *args, **kwargs | {"packed_seq": True})
        if self._boundaries is None:
            size = self.cp_group.size()
            if size == 1:
                return table
            width = torch.tensor([0, max_seq_len], device=table.device)
            return table.index_select(0, zigzag_positions(width, size, self.cp_group.rank()))
        return table.index_select(0, restarting_positions(self._boundaries))


def restarting_positions(boundaries: Tensor) -> Tensor:
    """Positions that start again at 0 at each boundary.

    Args:
        boundaries: int32 ``[n + 1]``, from 0 to T.

    Returns:
        int64 ``[T]``.
    """
    lengths = boundaries.diff().long()
    starts = boundaries[:-1].long().repeat_interleave(lengths)
    return torch.arange(int(boundaries[-1]), device=boundaries.device) - starts
