"""Lowered rotary frequencies: by hand at the ends, and as transformers computes them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from models.hf.config import Section
from models.hf.rope import read_scaling, write_scaling
from models.rope_scaling import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling
from models.rotary import rotary_frequencies
from models.shapes import GPTShape

LLAMA_3_1 = Llama3Scaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_length=8192
)
QWEN_YARN = YarnScaling(factor=4.0, original_context_length=32768)


def frequencies(scaling: RopeScaling | None, base: float = 500000.0) -> torch.Tensor:
    shape = GPTShape(
        num_layers=1,
        hidden_size=256,
        ffn_hidden_size=8,
        num_attention_heads=2,
        num_query_groups=2,
        context_length=131072,
        rotary_base=base,
        rope_scaling=scaling,
    )
    return rotary_frequencies(shape)


def test_without_scaling() -> None:
    plain = frequencies(None, base=10000.0)
    assert plain.shape == (64,)
    assert plain[0] == 1.0
    # The pair in the middle turns by base^(-1/2).
    assert math.isclose(plain[32].item(), 0.01, rel_tol=1e-6)


def test_linear_scaling_lowers_all_alike() -> None:
    lowered = frequencies(LinearScaling(factor=4.0))
    assert torch.equal(lowered, frequencies(None) / 4)


def test_llama_3_keeps_short_wavelengths_and_lowers_long_ones() -> None:
    plain, lowered = frequencies(None), frequencies(LLAMA_3_1)
    wavelengths = 2 * math.pi / plain
    short, long = wavelengths < 8192 / 4, wavelengths > 8192 / 1
    assert short.any() and long.any() and not (short | long).all()
    assert torch.equal(lowered[short], plain[short])
    assert torch.equal(lowered[long], plain[long] / 8)
    between = lowered[~(short | long)] / plain[~(short | long)]
    assert ((between > 1 / 8) & (between < 1)).all()


def test_yarn_keeps_fast_channels_and_lowers_slow_ones() -> None:
    plain, lowered = frequencies(None), frequencies(QWEN_YARN)
    turns = 32768 * plain / (2 * math.pi)
    assert torch.equal(lowered[turns > 2 * 32], plain[turns > 2 * 32])
    assert torch.allclose(lowered[turns < 0.5], plain[turns < 0.5] / 4)
    assert math.isclose(QWEN_YARN.attention, 0.1 * math.log(4) + 1)
    assert YarnScaling(factor=1.0, original_context_length=8).attention == 1.0
    assert YarnScaling(factor=4, original_context_length=8, attention_factor=0.7).attention == 0.7


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
         "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.7},
        {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 8192,
         "attention_factor": 0.9, "truncate": False},
    ],
    ids=["linear", "llama3", "yarn", "yarn-mscale", "yarn-untruncated"],
)  # fmt: skip
def test_scalings_are_those_of_transformers(rope: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=131072,
        rope_parameters={**rope, "rope_theta": 500000.0},
    )
    expected, attention = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    scaling = read_scaling(Section("here", rope), 131072)
    assert scaling is not None
    assert torch.allclose(frequencies(scaling), expected, rtol=1e-6, atol=0)
    assert math.isclose(scaling.attention, attention)
    # And what is written of it is read as the same.
    written = write_scaling(scaling)
    assert written is not None
    again = read_scaling(Section("here", written), 131072)
    assert again is not None
    assert torch.equal(frequencies(again), frequencies(scaling))
    assert again.attention == scaling.attention


@pytest.mark.parametrize(
    ("rope", "told"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, 'rope_type="dynamic"; of the scalings linear, '),
        ({"type": "longrope"}, 'rope_type="longrope"; of the scalings'),
        ({"rope_type": ["yarn"]}, 'rope_type=["yarn"]; of the scalings'),
        ({"rope_type": "linear"}, "factor=null; it must be a number"),
        ({"rope_type": "linear", "factor": True}, "factor=true; it must be a number"),
        ({"rope_type": "linear", "factor": math.inf}, "factor=Infinity; it must be a number"),
        ({"rope_type": "linear", "factor": 0.0}, "factor=0.0; must be above 0"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0},
         "high_freq_factor=1.0; must be above low_freq_factor=4.0"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0,
          "original_max_position_embeddings": "8192"},
         'original_max_position_embeddings="8192"; it must be a whole number of at least 1'),
        ({"rope_type": "yarn", "factor": 8.0, "beta_fast": 1, "beta_slow": 2},
         "beta_fast=1.0; must be above beta_slow=2.0"),
        ({"rope_type": "yarn", "beta_fast": "fast"}, 'beta_fast="fast"; it must be a number'),
        ({"rope_type": "yarn", "factor": 8.0, "attention_factor": -1.0},
         "attention_factor=-1.0; must be above 0"),
        ({"rope_type": "yarn", "attention_factor": "1"}, 'attention_factor="1"; it must be a num'),
        ({"rope_type": "yarn", "mscale": "1", "mscale_all_dim": 1}, 'mscale="1"; it must be a num'),
    ],
)  # fmt: skip
def test_what_cannot_be_scaled(rope: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_scaling(Section("here", rope, prefix="rope_scaling."), 64)
    assert str(caught.value).startswith(
        f"init_from=here: its configuration has rope_scaling.{told}"
    )


def test_no_scaling_has_many_names() -> None:
    def read(**rope: Any) -> RopeScaling | None:
        return read_scaling(Section("here", rope), 64)

    assert read() is None
    assert read(rope_type="default", rope_theta=10000.0) is None
    assert write_scaling(None) is None
    # Without a length of its own the original context is the model's.
    assert read(type="yarn", factor=2.0) == YarnScaling(factor=2.0, original_context_length=64)
    # Without a factor it is the ratio of the two.
    assert read(type="yarn", original_max_position_embeddings=16) == YarnScaling(
        factor=4.0, original_context_length=16
    )
