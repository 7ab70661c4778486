"""From a published model's configuration to a shape, or to the reason why it cannot be built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from models.hf.config import Section, read_config
from models.hf.families import FAMILIES, Family
from models.hf.rope import read_scaling
from models.rope_scaling import RopeScaling
from models.shapes import GPTShape, ModelSource


@dataclass(frozen=True, kw_only=True)
class HuggingFaceModel(ModelSource):
    """A published model whose own configuration says its shape.

    Attributes:
        init_from: a directory as ``transformers`` saves it, the id of one on the Hugging Face Hub,
            or a GGUF file.
        context_length: tokens, at most the model's own; None: that.
        vocab_multiple: the embedding is padded to a multiple of it.
    """

    init_from: str
    context_length: int | None = None
    vocab_multiple: int = 1

    def __post_init__(self) -> None:
        for name in ("context_length", "vocab_multiple"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")

    def resolve(self) -> GPTShape:
        """The model's shape.

        Raises:
            ValueError: as :func:`shape_of`.
        """
        shape = shape_of(self.init_from, self.context_length)
        return replace(shape, vocab_multiple=self.vocab_multiple)


def agreed(shape: GPTShape, init_from: str) -> GPTShape:
    """A shape that was written down, held against the model whose weights it is to get.

    Returns:
        The shape, with as many rows in its vocabulary as the model has.

    Raises:
        ValueError: as :func:`shape_of`; or the two differ, naming where.
    """
    theirs = shape_of(init_from, shape.context_length)
    mine = replace(shape, vocab_size=shape.vocab_size or theirs.vocab_size)
    for name in (
        "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
        "channels_per_head", "vocab_size", "rotary_base", "rope_scaling", "norm_epsilon",
        "tie_embeddings", "qkv_bias", "qk_norm",
    ):  # fmt: skip
        wanted, found = getattr(mine, name), getattr(theirs, name)
        same = wanted == found
        if isinstance(wanted, float):  # a GGUF file has it in single precision
            same = math.isclose(wanted, found, rel_tol=1e-6)
        if not same:
            key = "head_dim" if name == "channels_per_head" else name
            raise ValueError(
                f"{key}={_show(wanted)}: the model in model.init_from={init_from} has "
                f"{_show(found)}; set that, or use model=hf, which takes every number from there"
            )
    return mine


def shape_of(init_from: str, context_length: int | None = None) -> GPTShape:
    """The shape of a published model.

    Args:
        init_from: where it is.
        context_length: tokens that are wanted; None: as many as the model takes.

    Raises:
        ValueError: it cannot be read, or has something that cannot be built here: says which key of
            its configuration has which value.
    """
    config = Section(init_from, read_config(init_from))
    family = _family(config)
    _refuse_unsupported(config)
    heads = config.whole("num_attention_heads")
    hidden = config.whole("hidden_size")
    longest = config.whole("max_position_embeddings")
    if context_length is not None and context_length > longest:
        raise ValueError(
            f"context_length={context_length}: the model in model.init_from={init_from} takes "
            f"{longest} at most"
        )
    context = context_length or longest
    _refuse_window(config, family, context)
    base, scaling = _rotary(config, longest)
    numbers: dict[str, Any] = {
        "num_layers": config.whole("num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": config.whole("intermediate_size"),
        "num_attention_heads": heads,
        "num_query_groups": config.whole("num_key_value_heads", heads),
        "head_dim": config.whole("head_dim", family.head_dim or hidden // heads),
        "context_length": context,
        "vocab_size": config.whole("vocab_size"),
        "vocab_multiple": 1,
        "rotary_base": base,
        "rope_scaling": scaling,
        "norm_epsilon": config.number("rms_norm_eps"),
        "tie_embeddings": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": family.qkv_bias,
        "qk_norm": family.qk_norm,
        "init_std": config.number("initializer_range", 0.02),
        "init_from": init_from,
    }
    try:
        return GPTShape(**numbers)
    except ValueError as error:
        raise config.refused(error) from error


def _family(config: Section) -> Family:
    key = "architectures" if config.get("architectures") else "model_type"
    given = config.get(key)
    named = given if isinstance(given, list) else [given]
    for family in FAMILIES:
        if getattr(family, "model_type" if key == "model_type" else "architecture") in named:
            return family
    known = ", ".join(
        family.architecture if key == "architectures" else family.model_type for family in FAMILIES
    )
    raise config.refusal(key, given, f"of all {known} can be built here")


def _refuse_unsupported(config: Section) -> None:
    for key in ("quantization_config", "compression_config"):
        if quantised := config.get(key):
            method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
            raise config.refusal(
                f"{key}.quant_method", method,
                "quantised weights cannot be trained; take the model they were made from, or a "
                "GGUF file, which is dequantised as it is loaded",
            )  # fmt: skip
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise config.refusal("hidden_act", activation, "the activation can only be silu here")
    if config.get("attention_bias", False):
        raise config.refusal(
            "attention_bias", True, "attention without a bias on its output can be built here"
        )
    if config.get("mlp_bias", False):
        raise config.refusal("mlp_bias", True, "feed-forwards without bias can be built here")
    if config.get("num_local_experts") or config.get("num_experts"):
        key = "num_local_experts" if config.get("num_local_experts") else "num_experts"
        raise config.refusal(key, config.get(key), "mixtures of experts cannot be built here")


def _refuse_window(config: Section, family: Family, context: int) -> None:
    """Attention that looks back less far than the context; within the window it is ordinary."""
    # A configuration that has the key and null means it; one without it means the class's own.
    window = config.values.get("sliding_window", family.sliding_window)
    used = config.get("use_sliding_window", family.windowed)
    kinds = config.get("layer_types")
    if kinds is not None and not isinstance(kinds, list):
        raise config.refusal("layer_types", kinds, "it must be a list")
    if kinds is not None:
        used = used and any(kind != "full_attention" for kind in kinds)
    elif used and "max_window_layers" in config.values:
        used = config.whole("max_window_layers") < config.whole("num_hidden_layers")
    if used and window is not None and config.whole("sliding_window", window) < context:
        raise config.refusal(
            "sliding_window", window,
            f"attention over a window is not built here; set model.context_length={window} or "
            "less, where the window makes no difference",
        )  # fmt: skip


def _rotary(config: Section, longest: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling; ``rope_parameters`` since transformers 5, two keys before it."""
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    values = config.get(name) or {}
    if not isinstance(values, Mapping):
        raise config.refusal(name, values, "it must be a group of settings")
    if any(isinstance(value, Mapping) for value in values.values()):
        raise config.refusal(
            name, dict(values), "layers that differ in their positions cannot be built"
        )
    share = values.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if share != 1.0:
        raise config.refusal(
            "partial_rotary_factor", share, "positions that turn a part of a head cannot be built"
        )
    original = config.get("original_max_position_embeddings")
    if original is not None:
        values = {**values, "original_max_position_embeddings": original}
    rope = Section(config.init_from, values, prefix=f"{name}.")
    holder = config if rope.get("rope_theta") is None else rope
    return holder.number("rope_theta", 10000.0), read_scaling(rope, longest)


def _show(value: Any) -> str:
    """A value as it stands on the command line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
