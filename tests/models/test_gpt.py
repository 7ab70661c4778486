"""Building models: shapes, kernels, and the adaptations to a machine without CUDA."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml

from models import cpu
from models.gpt import KernelPath, build_gpt, choose_kernel_path
from models.losses import token_losses
from models.shapes import GPTShape, ModelSource
from sft.config import component
from sft.parallel import parallel_session

CONF = Path(__file__).resolve().parents[2] / "conf" / "model"
# model=hf has no shape of its own.
MODELS = sorted(path for path in CONF.glob("*.yaml") if path.stem != "hf")


def shape_of(path: Path, **changes: int | None) -> GPTShape:
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    shape = component({**settings, **changes}, ModelSource, "model")
    assert isinstance(shape, GPTShape)
    return shape


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_every_model_group_can_be_built_and_counted(path: Path) -> None:
    # Two layers and a small vocabulary: the whole of 8 B parameters would not fit here. The count
    # of the whole shape is held against the published one elsewhere.
    shape = shape_of(path, num_layers=2, vocab_size=None)
    with parallel_session(0, None):
        gpt = build_gpt(shape, tokenizer_vocab_size=262, kernels=KernelPath.TORCH)
    assert sum(p.numel() for p in gpt.parameters()) == shape.parameter_count(262)


def test_the_default_model_is_built_whole() -> None:
    shape = shape_of(next(p for p in MODELS if p.stem == "tiny"))
    with parallel_session(0, None):
        gpt = build_gpt(shape, tokenizer_vocab_size=262, kernels=KernelPath.TORCH)
    assert sum(p.numel() for p in gpt.parameters()) == shape.parameter_count(262) == 722_048


def test_kernels_can_be_forced_and_say_why() -> None:
    assert choose_kernel_path("torch") == (KernelPath.TORCH, "asked for")


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without CUDA")
def test_without_cuda() -> None:
    assert choose_kernel_path("auto") == (KernelPath.TORCH, "no CUDA device")
    with pytest.raises(ValueError, match="no CUDA device; use attention=torch"):
        choose_kernel_path("transformer_engine")
    cpu.adapt_to_cpu()
    assert torch.zeros(2, device="cuda").device.type == "cpu"
    assert torch.ones(2, dtype=torch.int, device="cpu").dtype == torch.int
    assert torch.zeros(1).type() == "torch.cuda.FloatTensor"
    assert torch.zeros(1).type() == "torch.FloatTensor"
    assert torch.zeros(1).type() != "torch.cuda.HalfTensor"
    assert torch.zeros(1).double().type() != "torch.cuda.FloatTensor"
    assert torch.zeros(1).type(torch.float64).dtype == torch.float64


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without CUDA")
def test_device_contexts_still_work() -> None:
    # In a process of its own: torch remembers what it found at the first context.
    program = (
        "import torch\n"
        "from models.cpu import adapt_to_cpu\n"
        "adapt_to_cpu()\n"
        "with torch.device('meta'):\n"
        "    made = torch.empty(2), torch.arange(2), torch.nn.Linear(2, 2).weight\n"
        "print(*(tensor.device for tensor in made))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=CONF.parents[1],
    )
    assert done.stdout.split() == ["meta"] * 3


def test_where_cuda_exists_nothing_is_adapted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cpu, "_adapted", False)
    zeros, tensor_type = torch.zeros, torch.Tensor.type
    cpu.adapt_to_cpu()
    assert torch.zeros is zeros
    assert torch.Tensor.type is tensor_type
    assert cpu._adapted is False


def small(**changes: bool | int) -> GPTShape:
    settings: dict[str, bool | int] = {
        "num_layers": 2,
        "hidden_size": 16,
        "ffn_hidden_size": 24,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "context_length": 32,
        "vocab_multiple": 1,
    }
    return GPTShape(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{"qk_norm": True}, {"qkv_bias": True}, {"tie_embeddings": True}]
)
def test_parameters_are_counted(changes: dict[str, bool]) -> None:
    shape = small(**changes)
    with parallel_session(0, None):
        gpt = build_gpt(shape, tokenizer_vocab_size=19, kernels=KernelPath.TORCH)
    assert sum(p.numel() for p in gpt.parameters()) == shape.parameter_count(19)


def test_padding_of_the_vocabulary_is_never_predicted() -> None:
    # 19 ids, and 13 rows that stand for none. They get random weights, and must change nothing.
    shape = small(vocab_multiple=32)
    tokens = torch.arange(12).unsqueeze(0)
    labels = tokens.roll(-1, dims=1)
    with parallel_session(0, None):
        gpt = build_gpt(shape, tokenizer_vocab_size=19, kernels=KernelPath.TORCH)
        losses = token_losses(
            gpt,
            tokens=tokens,
            labels=labels,
            position_ids=tokens,
            loss_positions=torch.arange(12),
            packing=None,
        )
        losses.sum().backward()
        logits = gpt(tokens, tokens, None)
    assert logits.shape == (1, 12, 32)
    expected = F.cross_entropy(logits[0, :, :19], labels[0], reduction="none")
    assert torch.allclose(losses, expected, atol=1e-6)
    assert (gpt.output_layer.weight.grad[19:] == 0).all()
    assert (gpt.output_layer.weight.grad[:19] != 0).any(dim=1).all()
