"""The layouts of fused parameters by hand, and that every way in has its way back."""

from __future__ import annotations

import pytest
import torch

from models.hf.names import Layout, Weight, fuse, take_apart, weights
from models.shapes import GPTShape

SHAPE = GPTShape(
    num_layers=2,
    hidden_size=8,
    ffn_hidden_size=12,
    num_attention_heads=8,
    num_query_groups=4,
    head_dim=2,
    context_length=8,
    vocab_size=10,
    qkv_bias=True,
    qk_norm=True,
)


def test_query_key_and_value_lie_group_by_group() -> None:
    # Two groups of two query heads with one channel each; a head's rows hold its number.
    weight = next(w for w in weights(SHAPE, 10) if w.layout is Layout.QKV)
    query, key, value = torch.tensor([0, 1, 2, 3]), torch.tensor([10, 11]), torch.tensor([20, 21])
    fused = fuse(weight, (query, key, value), 2, rows=0, rank=0, ranks=1)
    assert fused.tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    halves = [fuse(weight, (query, key, value), 2, rows=0, rank=r, ranks=2) for r in range(2)]
    assert [half.tolist() for half in halves] == [[0, 1, 10, 20], [2, 3, 11, 21]]


def test_gate_and_up_lie_one_after_the_other_on_each_rank() -> None:
    weight = next(w for w in weights(SHAPE, 10) if w.layout is Layout.GATE_UP)
    gate, up = torch.tensor([0, 1, 2, 3]), torch.tensor([10, 11, 12, 13])
    assert fuse(weight, (gate, up), 1, rows=0, rank=0, ranks=1).tolist() == [
        0, 1, 2, 3, 10, 11, 12, 13,
    ]  # fmt: skip
    assert fuse(weight, (gate, up), 1, rows=0, rank=1, ranks=2).tolist() == [2, 3, 12, 13]


def test_the_vocabulary_is_padded_before_it_is_shared_out() -> None:
    weight = next(iter(weights(SHAPE, 3)))
    rows = torch.tensor([[1.0], [2.0], [3.0]])
    parts = [fuse(weight, (rows,), 1, rows=4, rank=r, ranks=2) for r in range(2)]
    assert [part.flatten().tolist() for part in parts] == [[1, 2], [3, 0]]
    assert torch.equal(take_apart(weight, parts, 1)[0], rows)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_parameter_is_taken_apart_as_it_was_fused(ranks: int) -> None:
    seen: set[str] = set()
    for weight in weights(SHAPE, 10):
        tensors = [torch.randn(size) for size in weight.tensors.values()]
        parts = [
            fuse(weight, tensors, SHAPE.num_query_groups, rows=12, rank=r, ranks=ranks)
            for r in range(ranks)
        ]
        assert len({part.shape for part in parts}) == 1
        again = take_apart(weight, parts, SHAPE.num_query_groups)
        assert [torch.equal(a, b) for a, b in zip(again, tensors, strict=True)] == [True] * len(
            tensors
        )
        assert not seen & weight.tensors.keys()
        seen |= weight.tensors.keys()


def test_the_table_has_every_parameter_under_both_names() -> None:
    table: list[Weight] = list(weights(SHAPE, 10))
    elements = sum(torch.Size(size).numel() for w in table for size in w.tensors.values())
    assert elements == SHAPE.parameter_count(10) - 2 * 8 * (64 - 10)  # less the padding
    ours = {name for w in table for name in w.names}
    assert {n for n in ours if n.startswith("decoder.layers.1.") and "norm" in n} == {
        "decoder.layers.1.input_layernorm.weight",
        "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight",
        "decoder.layers.1.self_attention.q_layernorm.weight",
        "decoder.layers.1.self_attention.k_layernorm.weight",
        "decoder.layers.1.pre_mlp_layernorm.weight",
        "decoder.layers.1.mlp.linear_fc1.layer_norm_weight",
    }
