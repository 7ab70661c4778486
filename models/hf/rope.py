"""Rotary scaling as Hugging Face's configurations write it. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.rope_scaling import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
    yarn_attention,
)


def read_scaling(rope: Mapping[str, Any], context_length: int) -> RopeScaling | None:
    """The scaling that ``rope_scaling``, or ``rope_parameters``, describes.

    Args:
        rope: that section of a configuration, whichever name it has.
        context_length: the model's, in tokens; the original one where the section has none.

    Raises:
        ValueError: a kind that is not known, or one that lacks a number; says which.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    original = rope.get("original_max_position_embeddings") or context_length
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=_number(rope, "factor"))
    if kind == "llama3":
        return Llama3Scaling(
            factor=_number(rope, "factor"),
            low_freq_factor=_number(rope, "low_freq_factor"),
            high_freq_factor=_number(rope, "high_freq_factor"),
            original_context_length=int(original),
        )
    if kind == "yarn":
        if rope.get("factor") is None:
            rope = {**rope, "factor": context_length / original}
        return YarnScaling(
            factor=_number(rope, "factor"),
            original_context_length=int(original),
            attention_factor=_yarn_attention(rope),
            beta_fast=float(rope.get("beta_fast") or 32),
            beta_slow=float(rope.get("beta_slow") or 1),
            truncate=bool(rope.get("truncate", True)),
        )
    raise ValueError(f"rope_type={kind}: of the scalings linear, llama3 and yarn can be built here")


def write_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    """The section ``rope_scaling`` of a configuration; None: no scaling."""
    match scaling:
        case None:
            return None
        case LinearScaling():
            return {"rope_type": "linear", "factor": scaling.factor}
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_context_length,
            }
        case YarnScaling():
            return {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_context_length,
                "attention_factor": scaling.attention,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "truncate": scaling.truncate,
            }
    raise ValueError(
        f"rope_scaling={type(scaling).__name__}: transformers has no name for it; it reads "
        "LinearScaling, Llama3Scaling and YarnScaling"
    )


def _yarn_attention(rope: Mapping[str, Any]) -> float | None:
    given = rope.get("attention_factor")
    if given is not None:
        return float(given)
    numerator, denominator = rope.get("mscale"), rope.get("mscale_all_dim")
    if not (numerator and denominator):
        return None
    factor = _number(rope, "factor")
    return yarn_attention(factor, numerator) / yarn_attention(factor, denominator)


def _number(rope: Mapping[str, Any], key: str) -> float:
    value = rope.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key}={value}: must be a number")
    return float(value)
