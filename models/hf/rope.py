"""Rotary scaling as Hugging Face's configurations write it. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.hf.config import Section
from models.rope_scaling import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
    yarn_attention,
)


def read_scaling(rope: Section, context_length: int) -> RopeScaling | None:
    """The scaling that ``rope_scaling``, or ``rope_parameters``, describes.

    Args:
        rope: that section of a configuration, whichever name it has.
        context_length: the model's, in tokens; the original one where the section has none.

    Raises:
        ValueError: a kind that is not known, or one with a number that cannot be; says which.
    """
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        raise rope.refusal(
            "rope_type", kind, "of the scalings linear, llama3 and yarn can be built here"
        )
    if kind == "linear":
        return _built(rope, LinearScaling, {"factor": rope.number("factor")})
    original = rope.whole("original_max_position_embeddings", context_length)
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        settings = {name: rope.number(name) for name in names}
        return _built(rope, Llama3Scaling, {**settings, "original_context_length": original})
    factor = rope.number("factor", context_length / original)
    yarn: dict[str, Any] = {
        "factor": factor,
        "original_context_length": original,
        "attention_factor": _yarn_attention(rope, factor),
        "beta_fast": rope.number("beta_fast", 0) or 32.0,
        "beta_slow": rope.number("beta_slow", 0) or 1.0,
        "truncate": bool(rope.get("truncate", True)),
    }
    return _built(rope, YarnScaling, yarn)


def _built(rope: Section, scaling: type[RopeScaling], settings: Mapping[str, Any]) -> RopeScaling:
    try:
        return scaling(**settings)
    except ValueError as error:
        raise rope.refused(error) from error


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


def _yarn_attention(rope: Section, factor: float) -> float | None:
    if rope.get("attention_factor") is not None:
        return rope.number("attention_factor")
    numerator, denominator = rope.number("mscale", 0), rope.number("mscale_all_dim", 0)
    if not (numerator and denominator):
        return None
    return yarn_attention(factor, numerator) / yarn_attention(factor, denominator)
