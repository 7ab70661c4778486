"""Megatron-Core's GPTModel: built from a shape, run on rows and rectangles.

The only file that knows ``PackedSeqParams``.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from enum import Enum
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from models.attention import SegmentAttention
from models.rotary import RowRotaryEmbedding, rotary_frequencies
from models.shapes import GPTShape


class KernelPath(Enum):
    """Which layers and which attention a model is built from."""

    TRANSFORMER_ENGINE = "transformer_engine"
    TORCH = "torch"


def choose_kernel_path(wanted: str) -> tuple[KernelPath, str]:
    """Which kernels to use, and why.

    Args:
        wanted: ``auto``, ``transformer_engine`` or ``torch``.

    Raises:
        ValueError: Transformer Engine is asked for and cannot run here.
    """
    if wanted == KernelPath.TORCH.value:
        return KernelPath.TORCH, "asked for"
    missing = "no CUDA device" if not torch.cuda.is_available() else _transformer_engine_fault()
    if missing is None:
        why = "asked for" if wanted == KernelPath.TRANSFORMER_ENGINE.value else "CUDA is there"
        return KernelPath.TRANSFORMER_ENGINE, why
    if wanted == KernelPath.TRANSFORMER_ENGINE.value:
        raise ValueError(f"{missing}; use attention=torch, or auto to let the machine decide")
    return KernelPath.TORCH, missing


def _transformer_engine_fault() -> str | None:
    """What keeps Transformer Engine from being used, or None.

    Where its torch extension lies differs between its packages, so only importing it tells.
    """
    if importlib.util.find_spec("transformer_engine") is None:
        return "transformer_engine is not installed"
    try:
        importlib.import_module("transformer_engine.pytorch")
    except (ImportError, OSError, RuntimeError) as error:
        return f"transformer_engine is installed but cannot be imported ({error})"
    return None


def build_gpt(shape: GPTShape, *, tokenizer_vocab_size: int, kernels: KernelPath) -> GPTModel:
    """Build the model; parallel state must be initialised.

    Args:
        shape: layers and widths.
        tokenizer_vocab_size: ids the tokenizer may produce.
        kernels: from :func:`choose_kernel_path`.

    Returns:
        The model in fp32, on the CPU where there is no CUDA. With ``shape.init_from`` its weights
        are not drawn: they are whatever was in memory until they are loaded.
    """
    config = transformer_config(shape)
    # Megatron-Core announces at every construction that a successor is planned.
    logging.getLogger("megatron.core.models.gpt.gpt_model").setLevel(logging.ERROR)
    model = GPTModel(
        config=config,
        transformer_layer_spec=layer_spec(shape, kernels),
        vocab_size=shape.padded_vocab_size(tokenizer_vocab_size),
        max_sequence_length=shape.context_length,
        share_embeddings_and_output_weights=shape.tie_embeddings,
        position_embedding_type="rope",
        rotary_base=shape.rotary_base,
    )
    if kernels is KernelPath.TORCH:
        model.rotary_pos_emb = RowRotaryEmbedding(
            kv_channels=shape.channels_per_head,
            rotary_percent=1.0,
            rotary_base=shape.rotary_base,
            use_cpu_initialization=config.use_cpu_initialization,
        )
    _set_rotary(model, shape)
    # What it has more rows for than ids is padding, and is given no probability.
    model.output_layer.real_vocab_size = shape.real_vocab_size(tokenizer_vocab_size)
    return model.cuda() if torch.cuda.is_available() else model


def unwrapped(model: Any) -> Any:
    """The GPTModel inside what wraps it for data parallelism; a bare one as it is."""
    while hasattr(model, "module"):
        model = model.module
    return model


def _set_rotary(model: GPTModel, shape: GPTShape) -> None:
    # A plain attribute: the embedding moves it to the device at the first row.
    model.rotary_pos_emb.inv_freq = rotary_frequencies(shape)
    if shape.rope_scaling is not None:
        for layer in model.decoder.layers:
            # It multiplies the cosines and sines of both queries and keys.
            assert hasattr(layer.self_attention, "_yarn_concentration_factor")
            layer.self_attention._yarn_concentration_factor = shape.rope_scaling.attention


def transformer_config(shape: GPTShape) -> TransformerConfig:
    """Megatron-Core's configuration for a shape; parallel state must be initialised."""
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_query_groups,
        kv_channels=shape.channels_per_head,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_epsilon,
        add_bias_linear=False,
        add_qkv_bias=shape.qkv_bias,
        qk_layernorm=shape.qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        init_method_std=shape.init_std,
        perform_initialization=shape.init_from is None,
        use_cpu_initialization=not torch.cuda.is_available(),
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        # The loss of a step is a sum over its loss tokens, divided once by their number.
        calculate_per_token_loss=True,
    )


def layer_spec(shape: GPTShape, kernels: KernelPath) -> ModuleSpec:
    """The modules of one transformer layer."""
    if kernels is KernelPath.TRANSFORMER_ENGINE:
        from megatron.core.models.gpt.gpt_layer_specs import (
            get_gpt_layer_with_transformer_engine_spec,
        )

        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=shape.qk_norm)
    spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=shape.qk_norm)
    spec.submodules.self_attention.submodules.core_attention = SegmentAttention
    return spec


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
        model: a GPTModel, bare or wrapped for data parallelism.
        tokens: int64 ``[b, s]``.
        labels: int64 ``[b, s]``.
        position_ids: int64 ``[b, s]``.
        loss_positions: int64 ``[k]``, indices into the flattened ``[b * s]``; may be empty.
        packing: the row's boundaries; None for a rectangle.

    Returns:
        float32 ``[k]``; connected to the model's graph even if ``k`` is 0.
    """
    losses: Tensor = model(
        tokens,
        position_ids,
        None,
        labels=labels,
        packed_seq_params=packing,
        output_processor=_losses_at_positions,
        output_processor_context=loss_positions,
    )
    return losses


def _losses_at_positions(
    *,
    hidden_states: Tensor,
    output_layer: Any,
    output_weight: Tensor | None,
    labels: Tensor,
    context: Tensor,
    compute_language_model_loss: Any,
    scale_logits: Any,
    **_unused: Any,
) -> Tensor:
    # hidden_states is [s, b, h] and positions index [b, s] flattened.
    chosen = hidden_states.transpose(0, 1).flatten(0, 1).index_select(0, context)
    logits, _ = output_layer(chosen.unsqueeze(1), weight=output_weight)
    _rule_out_padding(logits, output_layer)
    chosen_labels = labels.flatten().index_select(0, context).unsqueeze(0)
    losses: Tensor = compute_language_model_loss(chosen_labels, scale_logits(logits))
    return losses.flatten()


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
