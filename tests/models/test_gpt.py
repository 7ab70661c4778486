"""Building models: shapes, kernels, and the adaptations to a machine without CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from models import cpu
from models.gpt import KernelPath, build_gpt, choose_kernel_path
from models.shapes import GPTShape
from sft.parallel import parallel_session

MODELS = sorted((Path(__file__).resolve().parents[2] / "conf" / "model").glob("*.yaml"))


def shape_of(path: Path, **changes: int | None) -> GPTShape:
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert settings.pop("_target_") == "models.shapes.GPTShape"
    return GPTShape(**{**settings, **changes})


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


def test_where_cuda_exists_nothing_is_adapted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cpu, "_adapted", False)
    zeros, tensor_type = torch.zeros, torch.Tensor.type
    cpu.adapt_to_cpu()
    assert torch.zeros is zeros
    assert torch.Tensor.type is tensor_type
    assert cpu._adapted is False
