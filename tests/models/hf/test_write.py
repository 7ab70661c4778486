"""What is written of a model is what was read, and transformers loads it."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from models.gpt import KernelPath, build_gpt
from models.hf.shape import shape_of
from models.hf.write import published_config, save_tensors, with_precision, write_weights
from models.rope_scaling import YarnScaling
from models.shapes import GPTShape
from sft.parallel import parallel_session
from tests.models.hf import tiny
from tests.models.hf.ours import loaded, logits_alone


def tensors_in(directory: Path) -> dict[str, torch.Tensor]:
    files = sorted(directory.glob("*.safetensors"))
    return {k: v for file in files for k, v in load_file(file).items()}


def write_config(directory: Path, shape: GPTShape, vocab: int, dtype: torch.dtype) -> None:
    content = with_precision(published_config(shape, vocab), dtype)
    (directory / "config.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("name", tiny.MODELS)
def test_what_is_read_is_written(name: str, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    tiny.make(name, source)
    out.mkdir()
    with parallel_session(0, None):
        gpt, shape = loaded(source, vocab_multiple=64)
        write_weights(gpt, shape, out, vocab_size=tiny.VOCAB, dtype=torch.float32)
    write_config(out, shape, tiny.VOCAB, torch.float32)
    before, after = tensors_in(source), tensors_in(out)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert shape_of(str(out)) == replace(shape_of(str(source)), init_from=str(out))


@pytest.mark.parametrize(
    "special",
    [
        {},
        {"qkv_bias": True, "tie_embeddings": True},
        {"qk_norm": True, "head_dim": 16},
        {"rope_scaling": YarnScaling(factor=4.0, original_context_length=32)},
    ],
    ids=["llama", "qwen2", "qwen3", "yarn"],
)
def test_a_model_without_an_original(special: dict[str, object], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    settings = {
        "num_layers": 2,
        "hidden_size": 32,
        "ffn_hidden_size": 48,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "context_length": 128,
        "rotary_base": 5000.0,
        "norm_epsilon": 1e-4,
        "init_std": 0.2,
    }
    shape = GPTShape(**{**settings, **special})  # type: ignore[arg-type]
    tokens = tiny.sequences()[0]
    with parallel_session(0, None):
        gpt = build_gpt(shape, tokenizer_vocab_size=tiny.VOCAB, kernels=KernelPath.TORCH).eval()
        with torch.no_grad():
            for parameter in gpt.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter), alpha=0.3)
        ours = logits_alone(gpt, tokens)[:, : tiny.VOCAB]
        write_weights(gpt, shape, tmp_path, vocab_size=tiny.VOCAB, dtype=torch.float32)
    write_config(tmp_path, shape, tiny.VOCAB, torch.float32)
    model, said = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(said[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    theirs = tiny.logits_of(model.eval(), tokens)
    assert theirs.std() > 0.5
    assert (ours - theirs).abs().max() < 1e-5


def test_several_files_and_sixteen_bits(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    source, out = tmp_path / "in", tmp_path / "out"
    tiny.make("qwen2", source)
    out.mkdir()
    with parallel_session(0, None):
        gpt, shape = loaded(source)
        write_weights(
            gpt, shape, out, vocab_size=tiny.VOCAB, dtype=torch.bfloat16, most_bytes=10_000
        )
    write_config(out, shape, tiny.VOCAB, torch.bfloat16)
    before, after = tensors_in(source), tensors_in(out)
    assert all(torch.equal(before[k].bfloat16(), after[k]) for k in before | after)
    files = sorted(p.name for p in out.glob("*.safetensors"))
    assert len(files) > 3
    assert all(name.endswith(f"-of-{len(files):05d}.safetensors") for name in files)
    assert all((out / name).stat().st_size < 12_000 for name in files)
    model, said = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert model.dtype == torch.bfloat16
    assert not any(said[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most[1]))
        with pytest.raises(OSError):
            save_tensors({"a": torch.zeros(1000)}, tmp_path / "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)


def test_a_shape_that_transformers_does_not_have() -> None:
    shape = GPTShape(
        num_layers=1, hidden_size=8, ffn_hidden_size=8, num_attention_heads=2, num_query_groups=1,
        context_length=8, qkv_bias=True, qk_norm=True,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"^qkv_bias=true and qk_norm=true: no architecture"):
        published_config(shape, 10)
