"""Megatron-Core's GPTModel, built from a shape; :mod:`models.losses` runs it."""

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
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig

from models.attention import SegmentAttention
from models.initial import draw_weights
from models.norm import RMSNorm
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


def build_chunks(
    shape: GPTShape,
    *,
    tokenizer_vocab_size: int,
    kernels: KernelPath,
    seed: int = 0,
    sequence_parallel: bool = False,
) -> list[GPTModel]:
    """Build this rank's part of the model; parallel state must be initialised.

    Args:
        shape: layers and widths.
        tokenizer_vocab_size: ids the tokenizer may produce.
        kernels: from :func:`choose_kernel_path`.
        seed: of the weights.
        sequence_parallel: tensor-parallel ranks share the positions between the matrices too.

    Returns:
        One model for each virtual stage of the pipeline that this rank has, in fp32, on the CPU
        where there is no CUDA. With ``shape.init_from`` its weights are not drawn: they are
        whatever was in memory until they are loaded.
    """
    virtual = parallel_state.get_virtual_pipeline_model_parallel_world_size()
    stages: list[int | None] = [None] if virtual is None else list(range(virtual))
    config = transformer_config(shape, sequence_parallel=sequence_parallel)
    chunks = [_build_stage(shape, config, tokenizer_vocab_size, kernels, s) for s in stages]
    if shape.init_from is None:
        draw_weights(chunks, seed)
    return [chunk.cuda() for chunk in chunks] if torch.cuda.is_available() else chunks


def build_gpt(
    shape: GPTShape, *, tokenizer_vocab_size: int, kernels: KernelPath, seed: int = 0
) -> GPTModel:
    """The only chunk of :func:`build_chunks`, where there are no virtual stages."""
    (model,) = build_chunks(
        shape, tokenizer_vocab_size=tokenizer_vocab_size, kernels=kernels, seed=seed
    )
    return model


def _build_stage(
    shape: GPTShape,
    config: TransformerConfig,
    tokenizer_vocab_size: int,
    kernels: KernelPath,
    stage: int | None,
) -> GPTModel:
    # Megatron-Core announces at every construction that a successor is planned.
    logging.getLogger("megatron.core.models.gpt.gpt_model").setLevel(logging.ERROR)
    spec: Any = layer_spec(shape, kernels)
    if kernels is KernelPath.TORCH:
        spec = _block_spec(spec, config, stage)
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage)
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        vocab_size=shape.padded_vocab_size(tokenizer_vocab_size),
        max_sequence_length=shape.context_length,
        pre_process=first,
        post_process=last,
        share_embeddings_and_output_weights=shape.tie_embeddings,
        position_embedding_type="rope",
        rotary_base=shape.rotary_base,
        vp_stage=stage,
    )
    if kernels is KernelPath.TORCH:
        model.rotary_pos_emb = RowRotaryEmbedding(
            kv_channels=shape.channels_per_head,
            rotary_percent=1.0,
            rotary_base=shape.rotary_base,
            use_cpu_initialization=config.use_cpu_initialization,
        )
    _set_rotary(model, shape)
    if last:
        # What it has more rows for than ids is padding, and is given no probability.
        model.output_layer.real_vocab_size = shape.real_vocab_size(tokenizer_vocab_size)
        if config.sequence_parallel:
            # It is given the chosen positions of all ranks, not each rank's own.
            model.output_layer.sequence_parallel = False
            model.output_layer.allreduce_dgrad = True
    return model


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


def transformer_config(shape: GPTShape, *, sequence_parallel: bool = False) -> TransformerConfig:
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
        # The weights are drawn by ``models.initial``, or loaded.
        perform_initialization=False,
        use_cpu_initialization=not torch.cuda.is_available(),
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        sequence_parallel=sequence_parallel,
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        virtual_pipeline_model_parallel_size=(
            parallel_state.get_virtual_pipeline_model_parallel_world_size()
        ),
        pipeline_dtype=torch.float32,
        # Sends and receives of one batch are not told apart over gloo, where two stages each send
        # to the other both ways round.
        batch_p2p_comm=torch.cuda.is_available(),
        context_parallel_size=parallel_state.get_context_parallel_world_size(),
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
    attention = spec.submodules.self_attention.submodules
    attention.core_attention = SegmentAttention
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = RMSNorm
    if shape.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return spec


def _block_spec(layer: ModuleSpec, config: TransformerConfig, stage: int | None) -> Any:
    """The layers of this rank and the norm behind the last one."""
    count = get_num_layers_to_build(config, vp_stage=stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=RMSNorm)
