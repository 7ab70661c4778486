"""Small models of each family with random weights, as transformers makes and saves them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

VOCAB = 67  # no multiple of anything

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
# Name of the class of the configuration, and what is special.
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "smollm2": ("LlamaConfig", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama3": ("LlamaConfig", {"rope_parameters": _LLAMA_3, "head_dim": 16}),
    "linear": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 3.0}},
    ),
    "yarn": ("LlamaConfig", {"rope_parameters": _YARN}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", {"sliding_window": None, "rms_norm_eps": 1e-5}),
}
SPLITTABLE = [name for name in MODELS if name != "smollm2"]  # it has one key head


def make(name: str, directory: Path, **changes: Any) -> Any:
    """Save a model and return it, in float32.

    Norms and biases are random too: as they are initialised, all alike, one could stand in for
    another.
    """
    import transformers

    config_class, special = MODELS[name]
    config = getattr(transformers, config_class)(**{**_SIZES, **special, **changes})
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    model.save_pretrained(directory)
    return model


def sequences(vocab: int = VOCAB) -> list[torch.Tensor]:
    """Three sequences of tokens, one longer than the context that a scaling started from."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(vocab, (n,), generator=generator) for n in (90, 7, 31)]


@torch.no_grad()
def logits_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """What transformers computes of one sequence, [n, v]."""
    logits: torch.Tensor = model(tokens.unsqueeze(0)).logits[0]
    return logits
