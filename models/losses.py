"""A row or rectangle through the model, to its losses; the one place for ``PackedSeqParams``.

Whatever the layout, every rank is given the whole row; what of it is this rank's is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from models.context_parallel import zigzag_positions


def packed_seq_params(
    cu_seqlens: Tensor, cu_seqlens_padded: Tensor, max_seqlen: int, *, real_boundaries: bool
) -> PackedSeqParams:
    """What the attention kernel is told about a row.

    Args:
        cu_seqlens: int32 ``[n + 1]``, real boundaries.
        cu_seqlens_padded: int32 ``[n + 1]``, padded boundaries.
        max_seqlen: the longest padded segment; rotary embeddings need it to cover the padding.
        real_boundaries: hand over the real boundaries beside the padded ones, so that the kernel
            skips padding; else the padded ones stand for both. Attention is causal and padding
            stands last, so real tokens come out the same.
    """
    padded_between = real_boundaries and not torch.equal(cu_seqlens, cu_seqlens_padded)
    # Where the two agree it must be one tensor object: Transformer Engine tells by identity
    # whether there is padding, and takes a slower path when it thinks so.
    inner = cu_seqlens if padded_between else cu_seqlens_padded
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=inner,
        cu_seqlens_kv=inner,
        cu_seqlens_q_padded=cu_seqlens_padded,
        cu_seqlens_kv_padded=cu_seqlens_padded,
        max_seqlen_q=max_seqlen,
        max_seqlen_kv=max_seqlen,
        pad_between_seqs=padded_between,
    )


def token_losses(
    model: torch.nn.Module,
    *,
    tokens: Tensor,
    labels: Tensor,
    position_ids: Tensor,
    loss_positions: Tensor,
    packing: PackedSeqParams | None,
) -> Tensor:
    """Cross-entropy at the positions that count.

    Logits are computed for those positions only. In chat data most positions are prompt or
    padding, and the logits of a large vocabulary are the widest tensor of the whole step.

    Args:
        model: a GPTModel, bare or wrapped for data parallelism; the stage of a pipeline that this
            rank has.
        tokens: int64 ``[b, s]``.
        labels: int64 ``[b, s]``.
        position_ids: int64 ``[b, s]``.
        loss_positions: int64 ``[k]``, indices into the flattened ``[b * s]``; may be empty.
        packing: the row's boundaries; None for a rectangle.

    Returns:
        Of a pipeline's last stage float32 ``[k]``, connected to the model's graph even if ``k`` is
        0; under context parallelism 0 at positions that another rank has. Of other stages the
        activations ``[s, b, h]``.
    """
    mine = _my_part(tokens, labels, position_ids, loss_positions, packing)
    output: Tensor = model(
        mine.tokens,
        mine.position_ids,
        None,
        labels=mine.labels,
        packed_seq_params=packing,
        output_processor=_losses_at_positions,
        output_processor_context=mine,
    )
    return output


@dataclass(frozen=True, eq=False)
class _Part:
    """What of a row or rectangle is this context-parallel rank's.

    Attributes:
        tokens: int64 ``[b, s / size]``; labels and positions alike.
        loss_positions: int64 ``[k']``, into the flattened part.
        chosen: int64 ``[k']``, which of the ``k`` loss positions of the whole they are; None: all.
        losses: ``k``.
    """

    tokens: Tensor
    labels: Tensor
    position_ids: Tensor
    loss_positions: Tensor
    chosen: Tensor | None
    losses: int


def _my_part(
    tokens: Tensor,
    labels: Tensor,
    position_ids: Tensor,
    loss_positions: Tensor,
    packing: PackedSeqParams | None,
) -> _Part:
    size = parallel_state.get_context_parallel_world_size()
    count = loss_positions.numel()
    if size == 1:
        return _Part(tokens, labels, position_ids, loss_positions, None, count)
    width = tokens.shape[1]
    if packing is None:
        bounds = torch.tensor([0, width], device=tokens.device)
    else:
        bounds = packing.cu_seqlens_q_padded
    columns = zigzag_positions(bounds, size, parallel_state.get_context_parallel_rank())
    # Where in the part each column of the whole is; -1: another rank has it.
    place = torch.full((width,), -1, device=tokens.device)
    place[columns] = torch.arange(columns.numel(), device=tokens.device)
    line, column = loss_positions // width, loss_positions % width
    chosen = (place[column] >= 0).nonzero().flatten()
    return _Part(
        tokens=tokens.index_select(1, columns),
        labels=labels.index_select(1, columns),
        position_ids=position_ids.index_select(1, columns),
        loss_positions=(line * columns.numel() + place[column])[chosen],
        chosen=chosen,
        losses=count,
    )


def _losses_at_positions(
    *,
    hidden_states: Tensor,
    output_layer: Any,
    output_weight: Tensor | None,
    labels: Tensor,
    context: _Part,
    compute_language_model_loss: Any,
    scale_logits: Any,
    config: Any,
    **_unused: Any,
) -> Tensor:
    if config.sequence_parallel:
        # The output layer takes all positions and sums its gradient over the ranks by itself, see
        # ``models.gpt``.
        hidden_states = gather_from_sequence_parallel_region(
            hidden_states, tensor_parallel_output_grad=False
        )
    # hidden_states is [s, b, h] and positions index [b, s] flattened.
    flat = hidden_states.transpose(0, 1).flatten(0, 1)
    chosen = flat.index_select(0, context.loss_positions)
    logits, _ = output_layer(chosen.unsqueeze(1), weight=output_weight)
    _rule_out_padding(logits, output_layer)
    chosen_labels = labels.flatten().index_select(0, context.loss_positions).unsqueeze(0)
    losses: Tensor = compute_language_model_loss(chosen_labels, scale_logits(logits))
    losses = losses.flatten()
    if context.chosen is None:
        return losses
    return losses.new_zeros(context.losses).index_add(0, context.chosen, losses)


def _rule_out_padding(logits: Tensor, output_layer: Any) -> None:
    """Give rows of the vocabulary that stand for no id no probability, in place.

    So the loss does not depend on what the vocabulary is padded to, and a model that is exported
    without its padding has the loss that was trained.

    Args:
        logits: ``[k, 1, v]``, of this rank's v rows.
        output_layer: with the number of real rows, of all ranks together.
    """
    rows = logits.shape[-1]
    first = output_layer.tp_group.rank() * rows
    real = max(0, output_layer.real_vocab_size - first)
    if real < rows:
        logits[..., real:] = -torch.inf
