"""Attention over segments, against attention over each segment on its own."""

from __future__ import annotations

import pytest
import torch
from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb

from models.attention import attend_segments, causal_attention, segment_lengths
from models.losses import packed_seq_params
from models.rotary import restarting_positions


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Textbook causal attention of one segment, [n, h, d], in double precision."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("nhd,mhd->hnm", q, k) * scale
    scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), float("-inf"))
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v)


@pytest.mark.parametrize(
    "lengths",
    [[(5, 5)], [(1, 1), (7, 7), (3, 3)], [(5, 8), (10, 28)], [(1, 4), (4, 4), (2, 8)]],
)
def test_segments_attend_only_to_themselves(lengths: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    width = sum(padded for _, padded in lengths)
    q = torch.randn(width, 4, 8, requires_grad=True)
    k = torch.randn(width, 2, 8, requires_grad=True)
    v = torch.randn(width, 2, 8, requires_grad=True)
    out = attend_segments(q, k, v, lengths, 0.3)
    start = 0
    want = []
    for real, padded in lengths:
        end = start + real
        expected = reference(q[start:end], k[start:end], v[start:end], 0.3)
        assert torch.allclose(out[start:end].double(), expected, atol=1e-6)
        assert (out[end : start + padded] == 0).all()
        want.append(expected.sum())
        start += padded
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    expected_gradients = torch.autograd.grad(torch.stack(want).sum(), (q, k, v))
    for got, expected in zip(gradients, expected_gradients, strict=True):
        assert torch.allclose(got, expected, atol=1e-5)


def test_a_batch_of_rectangles() -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    out = causal_attention(q, k, v, 0.5)
    for b in range(2):
        parts = (x[b].transpose(0, 1) for x in (q, k, v))
        assert torch.allclose(out[b].transpose(0, 1).double(), reference(*parts, 0.5), atol=1e-6)


def boundaries(*ends: int) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.int32)


def test_what_the_kernel_is_told_when_there_is_padding() -> None:
    real, padded = boundaries(0, 5, 15), boundaries(0, 8, 20)
    params = packed_seq_params(real, padded, 12, real_boundaries=True)
    assert params.cu_seqlens_q is params.cu_seqlens_kv is real
    assert params.cu_seqlens_q_padded is params.cu_seqlens_kv_padded is padded
    assert params.pad_between_seqs is True
    assert (params.qkv_format, params.max_seqlen_q, params.max_seqlen_kv) == ("thd", 12, 12)
    assert segment_lengths(params) == [(5, 8), (10, 12)]


def test_padded_boundaries_are_one_object() -> None:
    # Cases A6, A7, A23: no padding, no flag, and one tensor, or a kernel takes its slow path.
    real, padded = boundaries(0, 5, 15), boundaries(0, 8, 36)
    for params in (
        packed_seq_params(real, padded, 28, real_boundaries=False),
        packed_seq_params(padded.clone(), padded, 28, real_boundaries=True),
    ):
        assert params.cu_seqlens_q is params.cu_seqlens_q_padded is padded
        assert params.cu_seqlens_kv is params.cu_seqlens_kv_padded is padded
        assert params.pad_between_seqs is False
        assert segment_lengths(params) == [(8, 8), (28, 28)]


def test_positions_restart_at_each_boundary() -> None:
    # Case B6.
    assert restarting_positions(boundaries(0, 3, 5)).tolist() == [0, 1, 2, 0, 1]


def test_a_table_per_row_turns_a_row_as_one_per_segment_does() -> None:
    from megatron.core.transformer.transformer_config import TransformerConfig

    from sft.parallel import parallel_session

    config = TransformerConfig(
        num_layers=1, hidden_size=16, num_attention_heads=2, ffn_hidden_size=16
    )
    ends = boundaries(0, 4, 12, 13)
    with parallel_session(0, None):
        from models.rotary import RowRotaryEmbedding

        rotary = RowRotaryEmbedding(8, rotary_percent=1.0, use_cpu_initialization=True)
        x = torch.randn(13, 2, 8)
        short = rotary.forward(8)
        by_segment = apply_rotary_pos_emb(x, short, config, cu_seqlens=ends)
        params = packed_seq_params(ends, ends, 8, real_boundaries=False)
        rotary.get_rotary_seq_len(None, None, x, config, packed_seq_params=params)
        at_once = apply_rotary_pos_emb(x, rotary.forward(8, packed_seq=True), config, ends)
        # And without a row it is the plain table again.
        rotary.get_rotary_seq_len(None, None, x, config)
        assert torch.equal(rotary.forward(8), short)
    assert torch.allclose(by_segment, at_once, atol=1e-6)
    assert torch.equal(at_once[0], x[0]) and torch.equal(at_once[4], x[4])
