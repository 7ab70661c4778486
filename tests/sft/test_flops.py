"""Model FLOPs by hand, and peaks of devices by the names that CUDA gives them."""

from __future__ import annotations

import pytest

from models.lora_settings import LoRASettings
from models.shapes import GPTShape
from sft.flops import TrainingFlops, peak_flops_per_s

SHAPE = GPTShape(
    num_layers=2,
    hidden_size=8,
    ffn_hidden_size=16,
    num_attention_heads=2,
    num_query_groups=1,
    context_length=32,
    vocab_multiple=4,
)


def test_model_flops_by_hand() -> None:
    flops = TrainingFlops.of(SHAPE, 18)
    # Query and output 8 x 8 each, key and value 8 x 4 each, three matrices of 8 x 16.
    assert flops.per_token == 6 * 2 * (2 * 64 + 2 * 32 + 3 * 128)
    assert flops.per_squared_token == 6 * 2 * 8
    assert flops.per_loss_token == 6 * 20 * 8
    # Samples of 3 and 5 tokens, of which 4 count in the loss.
    counted = flops.count(tokens=8, squared_lengths=9 + 25, loss_tokens=4)
    assert counted == 8 * 6912 + 34 * 96 + 4 * 960 == 62_400


def test_with_loss_at_every_token_it_is_the_usual_count() -> None:
    flops = TrainingFlops.of(SHAPE, 18)
    assert flops.per_token + flops.per_loss_token == SHAPE.flops_per_token(18)


def test_lora_flops_by_hand() -> None:
    lora = LoRASettings(rank=3, targets=["q_proj", "down_proj"])
    flops = TrainingFlops.of(SHAPE, 18, lora)
    # 576 frozen weights a layer, forward and the gradient of their input: 2 FLOPs each, no third
    # pass. The adapters, 3 x 8 and 8 x 3 for query, 3 x 16 and 8 x 3 for down, take all three.
    assert flops.per_token == 2 * (4 * 576 + 6 * (48 + 72))
    assert flops.per_loss_token == 4 * 20 * 8
    # Scores and values are of activations: nothing there is frozen.
    assert flops.per_squared_token == TrainingFlops.of(SHAPE, 18).per_squared_token


def test_without_a_rank_every_weight_is_trained() -> None:
    assert TrainingFlops.of(SHAPE, 18, LoRASettings()) == TrainingFlops.of(SHAPE, 18)


@pytest.mark.parametrize(
    ("name", "bfloat16", "float32"),
    [
        ("NVIDIA H200", 989.5e12, 494.5e12),
        ("NVIDIA H200 NVL", 835.5e12, 417.5e12),
        ("NVIDIA H100 80GB HBM3", 989.5e12, 494.5e12),
        ("NVIDIA H100 PCIe", 756.5e12, 378e12),
        ("NVIDIA H100 NVL", 835.5e12, 417.5e12),
        ("NVIDIA GH200 480GB", 989.5e12, 494.5e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, 156e12),
        ("A100-SXM4-40GB", 312e12, 156e12),
        ("NVIDIA A100 80GB PCIe", 312e12, 156e12),
        ("NVIDIA A10", 125e12, 62.5e12),
        ("NVIDIA L40S", 362.05e12, 183e12),
        ("NVIDIA L40", 181.05e12, 90.5e12),
        ("NVIDIA L4", 121e12, 60e12),
        ("NVIDIA B200", 2250e12, 1100e12),
        ("NVIDIA GB200", 2500e12, 1250e12),
    ],
)
def test_peaks(name: str, bfloat16: float, float32: float) -> None:
    assert peak_flops_per_s(name, "bfloat16") == bfloat16
    assert peak_flops_per_s(name, "float32") == float32


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Intel(R) Xeon(R)",
        "NVIDIA H100",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA A10G",
        "NVIDIA B300 SXM6 AC",
        "NVIDIA H20",
        "NVIDIA GeForce RTX 4090",
        "AMD Instinct MI300X",
    ],
)
def test_no_peak_is_guessed(name: str) -> None:
    assert peak_flops_per_s(name, "bfloat16") is None


def test_no_peak_of_another_precision_is_guessed() -> None:
    assert peak_flops_per_s("NVIDIA H200", "float64") is None
