"""From a configuration to a shape, whoever wrote it, and what is refused on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.hf.shape import HuggingFaceModel, agreed, shape_of
from models.rope_scaling import LinearScaling, Llama3Scaling, YarnScaling
from models.shapes import GPTShape

# As it is published with HuggingFaceTB/SmolLM2-135M-Instruct, by transformers 4.
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
}
QWEN2 = {
    **SMOLLM2,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "max_window_layers": 21,
    "sliding_window": 4096,
    "use_sliding_window": False,
}
QWEN3 = {**QWEN2, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128}
MISTRAL = {
    **SMOLLM2,
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": None,
}
LLAMA_3_1 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def write(directory: Path, config: dict[str, Any], **changes: Any) -> str:
    content = {k: v for k, v in {**config, **changes}.items() if v != "absent"}
    (directory / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return str(directory)


def test_a_published_configuration(tmp_path: Path) -> None:
    where = write(tmp_path, SMOLLM2)
    shape = shape_of(where)
    assert shape == GPTShape(
        num_layers=30,
        hidden_size=576,
        ffn_hidden_size=1536,
        num_attention_heads=9,
        num_query_groups=3,
        head_dim=64,
        context_length=8192,
        vocab_size=49152,
        vocab_multiple=1,
        rotary_base=100000.0,
        norm_epsilon=1e-5,
        tie_embeddings=True,
        init_std=0.041666666666666664,
        init_from=where,
    )
    assert shape.parameter_count(49152) == 134_515_008


def test_what_families_differ_in(tmp_path: Path) -> None:
    qwen2 = shape_of(write(tmp_path, QWEN2))
    assert (qwen2.qkv_bias, qwen2.qk_norm, qwen2.channels_per_head) == (True, False, 64)
    qwen3 = shape_of(write(tmp_path, QWEN3))
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.channels_per_head) == (False, True, 128)
    assert shape_of(write(tmp_path, QWEN3, head_dim="absent")).channels_per_head == 128
    mistral = shape_of(write(tmp_path, MISTRAL))
    assert (mistral.qkv_bias, mistral.qk_norm, mistral.channels_per_head) == (False, False, 64)
    # The first Llamas had as many key heads as query heads, and no key for it.
    first = shape_of(write(tmp_path, SMOLLM2, num_key_value_heads="absent", rope_theta="absent"))
    assert (first.num_query_groups, first.rotary_base) == (9, 10000.0)
    unnamed = write(tmp_path, QWEN2, architectures="absent")
    assert shape_of(unnamed).qkv_bias


def test_rotary_settings_of_before_and_since_transformers_5(tmp_path: Path) -> None:
    before = shape_of(write(tmp_path, SMOLLM2, rope_scaling=LLAMA_3_1, rope_theta=500000.0))
    since = {**LLAMA_3_1, "rope_theta": 500000.0}
    both = write(
        tmp_path, SMOLLM2, rope_scaling="absent", rope_theta="absent", rope_parameters=since
    )
    assert shape_of(both) == before
    assert before.rope_scaling == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_length=8192
    )
    assert before.rotary_base == 500000.0
    old = {"type": "linear", "factor": 2.0}
    assert shape_of(write(tmp_path, SMOLLM2, rope_scaling=old)).rope_scaling == LinearScaling(
        factor=2.0
    )
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert shape_of(write(tmp_path, QWEN2, rope_scaling=yarn)).rope_scaling == YarnScaling(
        factor=4.0, original_context_length=2048
    )
    default = {"rope_type": "default", "rope_theta": 7.0}
    plain = shape_of(write(tmp_path, SMOLLM2, rope_parameters=default))
    assert (plain.rope_scaling, plain.rotary_base) == (None, 7.0)


@pytest.mark.parametrize(
    ("config", "changes", "told"),
    [
        (SMOLLM2, {"architectures": ["GemmaForCausalLM"]},
         'architectures=["GemmaForCausalLM"]; of all LlamaForCausalLM, Qwen2ForCausalLM, '
         "Qwen3ForCausalLM, MistralForCausalLM can be built here"),
        (SMOLLM2, {"architectures": 3}, "architectures=3; of all"),
        (SMOLLM2, {"architectures": "absent", "model_type": "gpt2"},
         'model_type="gpt2"; of all llama, qwen2, qwen3, mistral can be built here'),
        (SMOLLM2, {"quantization_config": {"quant_method": "gptq", "bits": 4}},
         'quantization_config.quant_method="gptq"; quantised weights cannot be trained'),
        (SMOLLM2, {"hidden_act": "gelu"}, 'hidden_act="gelu"; the activation can only be silu'),
        (SMOLLM2, {"attention_bias": True}, "attention_bias=true; attention without a bias"),
        (QWEN3, {"attention_bias": True}, "attention_bias=true; attention without a bias"),
        (SMOLLM2, {"mlp_bias": True}, "mlp_bias=true; feed-forwards without bias"),
        (SMOLLM2, {"num_local_experts": 8}, "num_local_experts=8; mixtures of experts"),
        (MISTRAL, {"sliding_window": 4096},
         "sliding_window=4096; attention over a window is not built here; set "
         "model.context_length=4096 or less, where the window makes no difference"),
        (MISTRAL, {"sliding_window": "absent"}, "sliding_window=4096; attention over a window"),
        (QWEN2, {"use_sliding_window": True}, "sliding_window=4096; attention over a window"),
        (QWEN3, {"use_sliding_window": True, "layer_types": ["full_attention",
                                                             "sliding_attention"]},
         "sliding_window=4096; attention over a window"),
        (MISTRAL, {"sliding_window": "4096"}, 'sliding_window="4096"; it must be a whole number'),
        (QWEN2, {"layer_types": 3}, "layer_types=3; it must be a list"),
        (SMOLLM2, {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
         'rope_scaling.rope_type="dynamic"; of the scalings linear, llama3 and yarn'),
        (SMOLLM2, {"rope_scaling": {"rope_type": "longrope"}},
         'rope_scaling.rope_type="longrope";'),
        (SMOLLM2, {"rope_theta": "10000"}, 'rope_theta="10000"; it must be a number'),
        (SMOLLM2, {"rope_parameters": {"rope_theta": "10000"}},
         'rope_parameters.rope_theta="10000"; it must be a number'),
        (SMOLLM2, {"rope_scaling": {"rope_type": "yarn", "factor": 2.0},
                   "original_max_position_embeddings": "8k"},
         'rope_scaling.original_max_position_embeddings="8k"; it must be a whole number'),
        (SMOLLM2, {"rope_scaling": {"rope_type": "linear", "factor": -2.0}},
         "rope_scaling.factor=-2.0; must be above 0"),
        (SMOLLM2, {"rope_scaling": {"rope_type": "linear"}},
         "rope_scaling.factor=null; it must be a number"),
        (SMOLLM2, {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
         'rope_parameters={"full_attention": {"rope_type": "default"}}; layers that differ'),
        (SMOLLM2, {"rope_scaling": [1]}, "rope_scaling=[1]; it must be a group of settings"),
        (SMOLLM2, {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5; positions that turn"),
        (SMOLLM2, {"hidden_size": "absent"}, "hidden_size=null; it must be a whole number"),
        (SMOLLM2, {"num_hidden_layers": 0}, "num_hidden_layers=0; it must be a whole number"),
        (SMOLLM2, {"vocab_size": True}, "vocab_size=true; it must be a whole number"),
        (SMOLLM2, {"rms_norm_eps": "tiny"}, 'rms_norm_eps="tiny"; it must be a number'),
        (SMOLLM2, {"rms_norm_eps": float("nan")}, "rms_norm_eps=NaN; it must be a number"),
        # What is wrong together has the names of a configuration too.
        (SMOLLM2, {"num_key_value_heads": 2},
         "num_key_value_heads=2; must divide num_attention_heads=9"),
        (SMOLLM2, {"rope_theta": 0}, "rope_theta=0.0; must be above 0"),
        (SMOLLM2, {"head_dim": 33}, "head_dim=33; must be even"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_named(
    tmp_path: Path, config: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    where = write(tmp_path, config, **changes)
    with pytest.raises(ValueError) as caught:
        HuggingFaceModel(init_from=where).resolve()
    message = str(caught.value)
    assert message.startswith(f"init_from={where}: its configuration has {told}"), message


def test_a_window_as_wide_as_the_context_is_none(tmp_path: Path) -> None:
    where = write(tmp_path, MISTRAL, sliding_window=4096)
    shape = HuggingFaceModel(init_from=where, context_length=4096).resolve()
    assert shape.context_length == 4096
    # Qwen's layers from max_window_layers on have the window: here none.
    where = write(tmp_path, QWEN2, use_sliding_window=True, max_window_layers=30)
    assert shape_of(where).context_length == 8192


def test_the_context_can_be_shorter_and_not_longer(tmp_path: Path) -> None:
    where = write(tmp_path, SMOLLM2)
    model = HuggingFaceModel(init_from=where, context_length=1024, vocab_multiple=128)
    assert model.resolve() == replace(shape_of(where), context_length=1024, vocab_multiple=128)
    with pytest.raises(
        ValueError, match=r"^context_length=9000: the model in model.init_from=.* takes 8192"
    ):
        HuggingFaceModel(init_from=where, context_length=9000).resolve()
    for wrong in ({"context_length": 0}, {"vocab_multiple": 0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            HuggingFaceModel(init_from=where, **wrong)


def test_a_shape_that_is_written_down_must_be_the_model_s(tmp_path: Path) -> None:
    where = write(tmp_path, SMOLLM2)
    theirs = shape_of(where)
    assert agreed(theirs, where) == theirs
    assert agreed(replace(theirs, vocab_size=None, head_dim=None), where).vocab_size == 49152
    shorter = replace(theirs, context_length=100, vocab_multiple=64, init_std=0.5)
    assert shorter.resolve() == shorter
    for change, told in {
        "num_layers": (2, "num_layers=2: the model in model.init_from=.* has 30; set that, or use "
                       "model=hf"),
        "vocab_size": (262, "vocab_size=262: .* has 49152"),
        "head_dim": (32, "head_dim=32: .* has 64"),
        "rotary_base": (10000.0, "rotary_base=10000.0: .* has 100000.0"),
        "tie_embeddings": (False, "tie_embeddings=false: .* has true"),
        "qk_norm": (True, "qk_norm=true: .* has false"),
        "rope_scaling": (LinearScaling(factor=2.0), "rope_scaling=LinearScaling.*: .* has null"),
        "context_length": (10000, "context_length=10000: .* takes 8192 at most"),
    }.items():  # fmt: skip
        value, message = told
        with pytest.raises(ValueError, match=f"^{message}"):
            replace(theirs, **{change: value}).resolve()  # type: ignore[arg-type]


def test_reading_a_shape_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    where = write(tmp_path, SMOLLM2, rope_scaling=LLAMA_3_1)
    program = (
        "import sys\n"
        "from models.hf.shape import HuggingFaceModel\n"
        f"HuggingFaceModel(init_from={where!r}).resolve()\n"
        "heavy = ('torch', 'transformers', 'gguf', 'huggingface_hub')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        cwd=Path(__file__).resolve().parents[3],
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
