"""A LoRA run from a published model, exported both ways: merged, and as an adapter for PEFT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sft.errors import ConfigError
from sft.export import export
from tests.conftest import read_metrics
from tests.models.hf import tiny
from tests.sft.test_export import BYTES, SMALL, loss_of, val_rows


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft reads what transformers renames
def test_merged_and_adapter_are_the_trained_model(
    run_app: Callable[..., Any], write_chats: Callable[..., Path], tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    path = write_chats([3, 9, 14, 5, 8, 11, 20, 2])
    original = tiny.make("qwen3", tmp_path / "original", vocab_size=BYTES)
    shape = ["num_layers=2", "hidden_size=32", "ffn_hidden_size=48", "num_attention_heads=4",
             "num_query_groups=2", "head_dim=16", "qk_norm=true", "context_length=64",
             "norm_epsilon=1e-6", "tie_embeddings=true"]  # fmt: skip
    result = run_app(
        *SMALL, f"data.path={path}", "data.tokenizer=bytes", "train.steps=4", "train.save_every=0",
        "lora=default", "lora.rank=3", "lora.targets=[attention, down_proj]",
        *(f"model.{setting}" for setting in shape), f"model.init_from={tmp_path / 'original'}",
    )  # fmt: skip
    rows = val_rows(path, result)
    first, *_, last = read_metrics(result.run_dir, "val")
    # Fresh adapters change nothing; trained ones do.
    assert first["val_loss"] == pytest.approx(loss_of(original, path, rows), rel=1e-5)
    assert last["val_loss"] < first["val_loss"] - 0.01
    export(result.run_dir, tmp_path / "adapter", adapter=True)
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    adapted = PeftModel.from_pretrained(original, tmp_path / "adapter")
    assert loss_of(adapted, path, rows) == pytest.approx(last["val_loss"], rel=1e-5)
    export(result.run_dir, tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert type(merged).__name__ == "Qwen3ForCausalLM"
    assert loss_of(merged, path, rows) == pytest.approx(last["val_loss"], rel=1e-5)


def test_adapters_of_random_weights_are_exported_merged(
    run_app: Callable[..., Any], write_chats: Callable[..., Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    path = write_chats([3, 9, 14, 5])
    lora = ("lora=default", "lora.rank=2")
    result = run_app(*SMALL, f"data.path={path}", "train.steps=2", "train.save_every=0", *lora)
    with pytest.raises(ConfigError, match="adapters to weights that were drawn at random"):
        export(result.run_dir, tmp_path / "adapter", adapter=True)
    export(result.run_dir, tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    loss = loss_of(merged, path, val_rows(path, result))
    assert loss == pytest.approx(result.final_val_loss, rel=1e-5)
