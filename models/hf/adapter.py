"""Adapters out, as the PEFT library reads them: ``adapter_config.json`` and safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from models.hf.write import save_tensors
from models.lora import branches
from models.lora_settings import ATTENTION, LoRASettings, projections
from models.shapes import GPTShape


def save_adapter(model: Any, shape: GPTShape, settings: LoRASettings, out: Path) -> None:
    """Write a model's adapters as a PEFT directory.

    ``PeftModel.from_pretrained(base, out)`` then computes what the model does. All
    tensor-parallel ranks must call; the first process writes.

    Args:
        model: with adapters, bare or wrapped; all its layers in this process.
        shape: of the model.
        settings: that the adapters were attached with.
        out: the directory; made if it is not there.

    Raises:
        ValueError: the model's weights come from nowhere, so there is no base to name.
    """
    if shape.init_from is None:
        raise ValueError(
            "init_from=null: an adapter is for the weights it was trained on, and these were "
            "random; export the merged model instead"
        )
    tensors = adapter_tensors(model, shape, settings)
    if dist.is_initialized() and dist.get_rank() != 0:
        return
    out.mkdir(parents=True, exist_ok=True)
    save_tensors(tensors, out / "adapter_model.safetensors")
    config = adapter_config(settings, base_model=shape.init_from)
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def adapter_tensors(model: Any, shape: GPTShape, settings: LoRASettings) -> dict[str, Tensor]:
    """A ``[r, i]`` and B ``[o, r]`` of every target, on the CPU, by their names in PEFT."""
    sizes = projections(shape)
    tensors = {}
    for layer, branch in branches(model):
        for name, (a, b) in branch.whole().items():
            inputs, outputs = sizes[name]
            assert a.shape == (settings.rank, inputs) and b.shape == (outputs, settings.rank)
            block = "self_attn" if name in ATTENTION else "mlp"
            prefix = f"base_model.model.model.layers.{layer}.{block}.{name}"
            tensors[f"{prefix}.lora_A.weight"] = a.cpu().contiguous()
            tensors[f"{prefix}.lora_B.weight"] = b.cpu().contiguous()
    assert len(tensors) == 2 * shape.num_layers * len(settings.matrices)
    return tensors


def adapter_config(settings: LoRASettings, *, base_model: str) -> dict[str, Any]:
    """The content of ``adapter_config.json``."""
    alpha = settings.resolved_alpha
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "inference_mode": True,
        "r": settings.rank,
        # A whole number, as PEFT declares it, where it is one.
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": settings.dropout,
        "target_modules": list(settings.matrices),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
    }
