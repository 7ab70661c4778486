"""What LoRA adapts, by the names that users of PEFT know, and how many weights that is."""

from __future__ import annotations

import pytest

from models.lora_settings import LoRASettings, projections
from models.shapes import GPTShape

SHAPE = GPTShape(
    num_layers=2,
    hidden_size=8,
    ffn_hidden_size=16,
    num_attention_heads=2,
    num_query_groups=1,
    head_dim=6,
    context_length=32,
)
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("targets", "matrices"),
    [
        (None, ALL),
        (["all"], ALL),
        (["attention"], ALL[:4]),
        (["mlp"], ALL[4:]),
        (["v_proj", "q_proj"], ("q_proj", "v_proj")),
        (["attention", "down_proj"], (*ALL[:4], "down_proj")),
    ],
)
def test_targets(targets: list[str] | None, matrices: tuple[str, ...]) -> None:
    assert LoRASettings(rank=1, targets=targets).matrices == matrices


def test_the_scale_is_alpha_over_rank() -> None:
    assert LoRASettings(rank=4, alpha=6.0).scale == 1.5
    # Twice the rank, whatever the rank.
    assert {LoRASettings(rank=rank).scale for rank in (1, 3, 64)} == {2.0}


def test_parameters_by_hand() -> None:
    # Query 8 -> 12, key and value 8 -> 6, output 12 -> 8, gate and up 8 -> 16, down 16 -> 8.
    assert list(projections(SHAPE).values()) == [
        (8, 12), (8, 6), (8, 6), (12, 8), (8, 16), (8, 16), (16, 8),
    ]  # fmt: skip
    assert LoRASettings(rank=3, targets=["q_proj"]).parameter_count(SHAPE) == 2 * 3 * (8 + 12)
    everything = 20 + 14 + 14 + 20 + 24 + 24 + 24
    assert LoRASettings(rank=5).parameter_count(SHAPE) == 2 * 5 * everything
    assert LoRASettings().parameter_count(SHAPE) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank=0: must be at least 1, or null for no LoRA"),
        ({"rank": 2, "alpha": 0.0}, "alpha=0.0: must be above 0 and finite"),
        ({"rank": 2, "alpha": float("inf")}, "alpha=inf: must be above 0 and finite"),
        ({"rank": 2, "dropout": 1.0}, "dropout=1.0: must be at least 0 and below 1"),
        ({"rank": 2, "dropout": -0.1}, "dropout=-0.1: must be at least 0 and below 1"),
        (
            {"rank": 2, "targets": []},
            f"targets=[]: must name a matrix; use {', '.join(ALL)}, attention, mlp, all, or null "
            "for all",
        ),
        (
            {"rank": 2, "targets": ["q_proj", "value_proj"]},
            "targets=[q_proj, value_proj]: there is no value_proj. Did you mean v_proj? Use "
            f"{', '.join(ALL)}, attention, mlp, all",
        ),
        (
            {"rank": 2, "targets": ["attention", "k_proj"]},
            "targets=[attention, k_proj]: names k_proj twice; name it once",
        ),
        *(
            (
                {name: value},
                f"{name}={shown}: does nothing without LoRA, and lora.rank is null; set lora.rank, "
                "as lora=default does, or remove it",
            )
            for name, value, shown in (
                ("alpha", 16.0, "16.0"),
                ("dropout", 0.1, "0.1"),
                ("targets", ["mlp"], "[mlp]"),
            )
        ),
    ],
)
def test_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        LoRASettings(**settings)  # type: ignore[arg-type]
    assert str(caught.value) == message
