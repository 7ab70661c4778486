"""Context parallelism: several ranks share each row, and attention sees all of it.

Causal attention costs a position as much as there are positions before it. So that ranks are
level, each padded segment is cut into ``2 * size`` equal chunks, and rank ``r`` has the r-th from
the front and the r-th from the back: in zigzag, as Transformer Engine and Megatron-Core have it
(the idea is of Brandon et al. 2023, "Striped Attention", section 3).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def zigzag_positions(cu_seqlens_padded: Tensor, size: int, rank: int) -> Tensor:
    """Which positions of a row a rank has, in its order.

    Args:
        cu_seqlens_padded: integers ``[n + 1]``, from 0 to T; each padded length is a multiple of
            ``2 * size``.
        size: context-parallel ranks.
        rank: which of them.

    Returns:
        int64 ``[T / size]``.
    """
    bounds = cu_seqlens_padded.long()
    chunks = bounds.diff() // (2 * size)
    assert torch.equal(chunks * 2 * size, bounds.diff()), "the pad multiple is not kept"
    starts = torch.stack(
        (bounds[:-1] + rank * chunks, bounds[:-1] + (2 * size - 1 - rank) * chunks), dim=1
    ).flatten()
    lengths = chunks.repeat_interleave(2)
    ends = lengths.cumsum(0)
    within = torch.arange(int(ends[-1]), device=bounds.device)
    within = within - (ends - lengths).repeat_interleave(lengths)
    return starts.repeat_interleave(lengths) + within


def row_order(cu_seqlens_padded: Tensor, size: int) -> Tensor:
    """Where each position of a row stands when the ranks' parts are put one after another.

    Args:
        cu_seqlens_padded: as for :func:`zigzag_positions`.
        size: context-parallel ranks.

    Returns:
        int64 ``[T]``: ``gathered[row_order]`` is in the row's own order.
    """
    parts = [zigzag_positions(cu_seqlens_padded, size, rank) for rank in range(size)]
    return torch.cat(parts).argsort()


class _GatherRow(torch.autograd.Function):
    """All ranks' parts one after another; backward, the sum of what all make of this rank's."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(part) for _ in range(group.size())]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        # Gloo has no reduce-scatter; and a sum over ranks in 16 bits would lose what fp32 keeps.
        whole = grad.float().contiguous()
        if whole is grad:
            whole = whole.clone()
        dist.all_reduce(whole, group=ctx.group)
        return whole.chunk(ctx.group.size())[ctx.group.rank()].to(grad.dtype), None


def gather_row(part: Tensor, group: Any) -> Tensor:
    """Every rank's part, one after another, differentiable.

    Args:
        part: ``[T / size, ...]``, of the same shape on every rank.
        group: the context-parallel ranks.

    Returns:
        ``[T, ...]``.
    """
    gathered: Tensor = _GatherRow.apply(part, group)
    return gathered


def attend_shared_segments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[tuple[int, int]],
    scale: float,
    group: Any,
) -> Tensor:
    """Causal attention inside each segment, of this rank's positions to those of all ranks.

    Args:
        query: ``[T / size, b, h, d]``, in this rank's order; b is 1 for a row.
        key: ``[T / size, b, g, d]``.
        value: like ``key``.
        lengths: (real, padded) per segment; the padded lengths sum to T.
        scale: multiplies the scores.
        group: the context-parallel ranks.

    Returns:
        ``[T / size, b, h, d]``; positions of padding get zeros.
    """
    size, rank = group.size(), group.rank()
    bounds = torch.tensor([0, *(extent for _, extent in lengths)]).cumsum(0)
    order = row_order(bounds, size).to(query.device)
    both = gather_row(torch.cat((key, value), dim=-1), group).index_select(0, order)
    key, value = torch.split(both, [key.shape[-1], value.shape[-1]], dim=-1)
    chunks = [extent // (2 * size) for _, extent in lengths for _ in range(2)]
    queries = iter(torch.split(query, chunks))
    extents = [extent for _, extent in lengths]
    segments = zip(torch.split(key, extents), torch.split(value, extents), lengths, strict=True)
    outs = []
    for k, v, (real, extent) in segments:
        chunk = extent // (2 * size)
        for start in (rank * chunk, (2 * size - 1 - rank) * chunk):
            outs.append(_attend_chunk(next(queries), k, v, start, real, scale))
    # A rank of nothing but padding has to take part in the backward of the gathering all the same:
    # the others wait for it there.
    return torch.cat(outs) + (query[:0].sum() + key[:0].sum() + value[:0].sum())


def _attend_chunk(
    query: Tensor, key: Tensor, value: Tensor, start: int, real: int, scale: float
) -> Tensor:
    """Positions from ``start`` on of one segment, ``[c, b, h, d]``, to those before and themselves.

    Args:
        query: ``[c, b, h, d]``.
        key: ``[n, b, g, d]``, of the whole segment.
        value: like ``key``.
        start: of the queries in the segment.
        real: positions of the segment that hold a token.
        scale: multiplies the scores.
    """
    chunk = query.shape[0]
    count = min(max(real - start, 0), chunk)
    if not count:
        return torch.zeros_like(query)
    seen = start + count
    # [n, b, heads, d] -> [b, heads, n, d]
    q, k, v = (x.permute(1, 2, 0, 3) for x in (query[:count], key[:seen], value[:seen]))
    mask = torch.ones(count, seen, dtype=torch.bool, device=query.device).tril(start)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    ).permute(2, 0, 1, 3)
    return torch.cat((out, torch.zeros_like(query[count:]))) if count < chunk else out
