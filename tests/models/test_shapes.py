"""What a shape costs: FLOPs per token and per squared token, worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from models.shapes import GPTShape, ModelSource
from sft.config import component

MODELS = Path(__file__).resolve().parents[2] / "conf" / "model"
BYTE_TOKENIZER = 262


def small(**changes: int | bool | None) -> GPTShape:
    settings: dict[str, int | bool | None] = {
        "num_layers": 3,
        "hidden_size": 8,
        "ffn_hidden_size": 10,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "context_length": 16,
        "vocab_multiple": 4,
    }
    return GPTShape(**{**settings, **changes})  # type: ignore[arg-type]


def named(name: str) -> GPTShape:
    settings = yaml.safe_load((MODELS / f"{name}.yaml").read_text(encoding="utf-8"))
    shape = component(settings, ModelSource, "model")
    assert isinstance(shape, GPTShape)
    return shape


def test_flops_per_token_by_hand() -> None:
    # A layer: query 8 x 8, key 8 x 4, value 8 x 4, output 8 x 8, and 3 of 8 x 10: 432 weights.
    # Output layer: 18 ids padded to 20, 20 x 8 = 160 weights. Twice 3 FLOPs each.
    assert small().flops_per_token(18) == 6 * (3 * 432 + 160) == 8736


def test_flops_per_squared_token_by_hand() -> None:
    # A layer has 4 heads of 2 channels. Scores of n tokens: n * n * 8 multiply-adds, 16 n^2 FLOPs,
    # half of it causal: 8 n^2. The product with the values as much. 3 layers, 3 passes.
    assert small().flops_per_squared_token() == 3 * 3 * (8 + 8) == 144


def test_wide_heads_are_counted_by_their_width() -> None:
    # Query and output 8 x 24, key and value 8 x 12.
    shape = small(head_dim=6)
    assert shape.flops_per_token(18) == 6 * (3 * (2 * 192 + 2 * 96 + 240) + 160)
    assert shape.flops_per_squared_token() == 3 * 144


def test_what_does_not_multiply_is_not_counted() -> None:
    assert small(qkv_bias=True).flops_per_token(18) == small().flops_per_token(18)
    assert small(qk_norm=True).flops_per_token(18) == small().flops_per_token(18)
    assert small(tie_embeddings=True).flops_per_token(18) == small().flops_per_token(18)


def test_fewer_key_heads_save_projections_and_no_attention() -> None:
    grouped, full = small(num_query_groups=1), small(num_query_groups=4)
    assert full.flops_per_token(18) - grouped.flops_per_token(18) == 6 * 3 * 2 * 8 * (8 - 2)
    assert grouped.flops_per_squared_token() == full.flops_per_squared_token()


def test_a_vocabulary_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size=10: the tokenizer needs 18"):
        small(vocab_size=10).flops_per_token(18)


def test_llama_3_8b_takes_six_flops_per_parameter_and_token() -> None:
    # The rule of thumb, 6 N: N with the embedding, which is looked up, is 7 % more.
    shape = named("llama3_1_8b")
    parameters = shape.parameter_count(BYTE_TOKENIZER)
    assert shape.flops_per_token(BYTE_TOKENIZER) == pytest.approx(6 * 8.03e9, rel=0.07)
    embedding_and_norms = 128256 * 4096 + 65 * 4096
    assert shape.flops_per_token(BYTE_TOKENIZER) == 6 * (parameters - embedding_and_norms)
    # Attention overtakes everything else at 57,000 tokens.
    even = shape.flops_per_token(BYTE_TOKENIZER) / shape.flops_per_squared_token()
    assert even == pytest.approx(57_250, rel=0.01)


def test_tied_embeddings_count_once_as_parameters_and_once_as_output_layer() -> None:
    shape = named("smollm2_135m")
    norms = (2 * 30 + 1) * 576
    assert shape.flops_per_token(BYTE_TOKENIZER) == 6 * (134_515_008 - norms)


def test_norms_of_queries_and_keys_are_parameters() -> None:
    # A layer has two of them, as wide as a head.
    with_norms, without = small(qk_norm=True), small()
    assert with_norms.parameter_count(18) - without.parameter_count(18) == 3 * 2 * 2


def test_padding_stands_for_no_id() -> None:
    assert small().padded_vocab_size(18) == 20
    assert small().real_vocab_size(18) == 18
    assert small(vocab_size=19).real_vocab_size(18) == 19
