"""Adapters as PEFT reads them: the model of transformers with them computes what ours does."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from models.gpt import KernelPath, build_gpt
from models.hf.adapter import adapter_config, save_adapter
from models.hf.load import load_weights
from models.hf.shape import HuggingFaceModel
from models.lora import attach, branches, merge
from models.lora_settings import LoRASettings
from models.shapes import GPTShape
from sft.parallel import parallel_session

VOCAB = 96
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
}


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with parallel_session(seed=3, threads=None):
        yield


@pytest.fixture(params=["llama", "qwen2"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A small random model as ``transformers`` saves it."""
    import transformers

    torch.manual_seed(1)
    kind, config = {
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig),
        "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config),
    }[request.param]
    path = tmp_path / "base"
    kind(config(**COMMON)).save_pretrained(path)
    return path


def adapted(base: Path, settings: LoRASettings) -> tuple[Any, GPTShape]:
    """Our model of the base's weights, with adapters of which no B is 0."""
    shape = HuggingFaceModel(init_from=str(base)).resolve()
    model = build_gpt(shape, tokenizer_vocab_size=VOCAB, kernels=KernelPath.TORCH)
    load_weights([model], shape)
    attach([model], settings, seed=1)
    generator = torch.Generator().manual_seed(8)
    for _, branch in branches(model):
        for adapter in branch.adapters.values():
            torch.nn.init.normal_(adapter.B.data, std=0.1, generator=generator)
    return model, shape


def tokens() -> Tensor:
    return torch.randint(0, VOCAB, (2, 20), generator=torch.Generator().manual_seed(4))


@torch.no_grad()
def our_logits(model: Any) -> Tensor:
    logits: Tensor = model.eval()(tokens(), torch.arange(20).expand(2, 20), None)
    return logits[..., :VOCAB]


@torch.no_grad()
def their_logits(base: Path, adapter: Path | None) -> Tensor:
    import peft
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(base)
    if adapter is not None:
        with warnings.catch_warnings():
            # PEFT warns of a key that it does not know, or misses.
            warnings.simplefilter("error", UserWarning)
            model = peft.PeftModel.from_pretrained(model, adapter)
    logits: Tensor = model.eval()(tokens()).logits
    return logits


@pytest.mark.parametrize(
    "settings",
    [
        LoRASettings(rank=3, alpha=5.0),
        LoRASettings(rank=2, dropout=0.1, targets=["v_proj", "gate_proj"]),
    ],
    ids=["all", "some"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft reads what transformers renames
def test_peft_computes_the_same(base: Path, settings: LoRASettings, tmp_path: Path) -> None:
    model, shape = adapted(base, settings)
    save_adapter(model, shape, settings, tmp_path / "adapter")
    got = our_logits(model)
    assert (got - their_logits(base, None)).abs().max() > 1e-2
    assert (got - their_logits(base, tmp_path / "adapter")).abs().max() < 1e-4
    merge(model)
    assert (our_logits(model) - got).abs().max() < 1e-5


def test_what_is_in_the_directory(base: Path, tmp_path: Path) -> None:
    settings = LoRASettings(rank=2, targets=["q_proj", "down_proj"])
    model, shape = adapted(base, settings)
    out = tmp_path / "some" / "adapter"
    save_adapter(model, shape, settings, out)
    assert sorted(path.name for path in out.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    with safe_open(out / "adapter_model.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    assert shapes == {
        f"base_model.model.model.layers.{layer}.{name}.weight": size
        for layer in (0, 1)
        for name, size in {
            "self_attn.q_proj.lora_A": (2, 48),
            "self_attn.q_proj.lora_B": (48, 2),
            "mlp.down_proj.lora_A": (2, 80),
            "mlp.down_proj.lora_B": (48, 2),
        }.items()
    }
    config = json.loads((out / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == str(base)
    assert (config["r"], config["lora_alpha"]) == (2, 4)
    assert config["target_modules"] == ["q_proj", "down_proj"]


def test_alpha_is_a_whole_number_where_it_is_one() -> None:
    for alpha, text in ((8.0, "8"), (2.5, "2.5")):
        config = adapter_config(LoRASettings(rank=2, alpha=alpha), base_model="base")
        assert json.dumps(config["lora_alpha"]) == text


def test_an_adapter_of_random_weights_is_refused(base: Path, tmp_path: Path) -> None:
    settings = LoRASettings(rank=2)
    model, shape = adapted(base, settings)
    with pytest.raises(ValueError) as caught:
        save_adapter(model, replace(shape, init_from=None), settings, tmp_path / "adapter")
    assert str(caught.value) == (
        "init_from=null: an adapter is for the weights it was trained on, and these were random; "
        "export the merged model instead"
    )
    assert not (tmp_path / "adapter").exists()
