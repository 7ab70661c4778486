"""Which tensors are read, and which are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.gpt import KernelPath, build_gpt
from models.hf.load import check_weights, load_weights
from models.hf.shape import shape_of
from models.hf.sources import open_tensors
from models.hf.write import tensors_of
from sft.parallel import parallel_session
from tests.models.hf import tiny
from tests.models.hf.ours import loaded, logits_alone

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.make("llama", path)
    return path


@pytest.fixture
def changed(llama: Path, tmp_path: Path) -> Callable[..., str]:
    """A copy of the model with other tensors."""

    def change(edit: Callable[[Tensors], object], **config: object) -> str:
        tensors = load_file(llama / "model.safetensors")
        edit(tensors)
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        content = json.loads((llama / "config.json").read_text(encoding="utf-8"))
        content |= config
        (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
        return str(tmp_path)

    return change


def refusal(where: str) -> str:
    with pytest.raises(ValueError) as caught:
        check_weights(shape_of(where))
    return str(caught.value)


Q = "model.layers.1.self_attn.q_proj"


def test_tensors_that_are_not_the_model_s(changed: Callable[..., str]) -> None:
    where = changed(lambda t: t.pop(f"{Q}.weight"))
    advice = "; weights and configuration are not of one model, so fetch both again"
    assert refusal(where) == f"init_from={where}: lacks {Q}.weight (32 x 32){advice}"
    changed(lambda t: [t.pop(k) for k in list(t) if "layers.0" in k])
    assert refusal(where).endswith(f" and 6 more{advice}")
    changed(lambda t: t.update({f"{Q}.bias": torch.zeros(32)}))
    assert refusal(where) == (
        f"init_from={where}: has, and a model of its configuration does not, {Q}.bias (32){advice}"
    )
    changed(lambda t: t.update({f"{Q}.weight": torch.zeros(16, 32)}))
    assert refusal(where) == (
        f"init_from={where}: {Q}.weight is 16 x 32, and its configuration makes it 32 x 32{advice}"
    )
    changed(lambda t: t.update({f"{Q}.weight": torch.zeros(32, 32, dtype=torch.int8)}))
    assert refusal(where) == (
        f"init_from={where}: {Q}.weight in model.safetensors is I8; weights of 16, 32 or 64 bits "
        "can be read, so take the model as it was before it was quantised, or a GGUF file"
    )


def test_more_layers_in_the_file_than_in_the_configuration(changed: Callable[..., str]) -> None:
    where = changed(lambda t: None, num_hidden_layers=1)
    assert "has, and a model of its configuration does not, model.layers.1." in refusal(where)


def test_a_tied_output_layer_may_be_there_twice(changed: Callable[..., str]) -> None:
    def copy(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    check_weights(shape_of(changed(copy, tie_word_embeddings=True)))
    where = changed(lambda t: None, tie_word_embeddings=True)
    assert refusal(where).startswith(
        f"init_from={where}: lm_head.weight differs from model.embed_tokens.weight"
    )


def test_tables_of_frequencies_are_passed_over(changed: Callable[..., str]) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    check_weights(shape_of(changed(lambda t: t.update({name: torch.ones(4)}))))


def test_sixteen_bits_are_read_as_they_are(changed: Callable[..., str]) -> None:
    def halve(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            tensors[name] = tensor.bfloat16()

    where = changed(halve)
    tensor = open_tensors(where).read(f"{Q}.weight")
    stored = load_file(Path(where) / "model.safetensors")[f"{Q}.weight"]
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor, stored.float())


def test_several_files(tmp_path: Path) -> None:
    model = tiny.make("qwen3", tmp_path)
    expected = tiny.logits_of(model, tiny.sequences()[1])
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    with parallel_session(0, None):
        ours = logits_alone(loaded(tmp_path)[0], tiny.sequences()[1])
    assert (ours - expected).abs().max() < 1e-5
    shards[1].unlink()
    assert refusal(str(tmp_path)).endswith(
        f"names {shards[1].name}, which is missing; fetch that file too"
    )


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_file_that_is_cut_short(llama: Path, tmp_path: Path, kept: int) -> None:
    for name in ("config.json", "model.safetensors"):
        content = (llama / name).read_bytes()
        (tmp_path / name).write_bytes(content[:kept] if name == "model.safetensors" else content)
    path = tmp_path / "model.safetensors"
    assert refusal(str(tmp_path)) == (
        f"init_from={tmp_path}: {path} is cut short or damaged; fetch it again"
    )


def test_files_that_are_not_read(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((llama / "config.json").read_bytes())
    assert "holds no model.safetensors and no model.safetensors.index.json" in refusal(
        str(tmp_path)
    )
    (tmp_path / "pytorch_model.bin").touch()
    assert "its weights are pickled (pytorch_model.bin), which can run code" in refusal(
        str(tmp_path)
    )
    (tmp_path / "model.safetensors.index.json").write_text("{}", encoding="utf-8")
    assert "model.safetensors.index.json has no weight_map" in refusal(str(tmp_path))


class EngineNames:
    """A model under the names that Transformer Engine's layers give its norms."""

    def __init__(self, gpt: Any) -> None:
        self.gpt, self.decoder = gpt, gpt.decoder

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for name, parameter in self.gpt.named_parameters():
            for ours, theirs in (
                ("input_layernorm.", "self_attention.linear_qkv.layer_norm_"),
                ("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"),
            ):
                name = name.replace(ours, theirs)
            yield name, parameter


def test_the_names_of_transformer_engine_s_layers(tmp_path: Path) -> None:
    model, tokens = tiny.make("llama", tmp_path), tiny.sequences()[1]
    shape = shape_of(str(tmp_path))
    with parallel_session(0, None):
        gpt = build_gpt(shape, tokenizer_vocab_size=tiny.VOCAB, kernels=KernelPath.TORCH).eval()
        load_weights([EngineNames(gpt)], shape)
        ours = logits_alone(gpt, tokens)
        written = dict(tensors_of(EngineNames(gpt), shape, tiny.VOCAB))
    assert (ours - tiny.logits_of(model, tokens)).abs().max() < 1e-5
    assert all(torch.equal(written[k], v) for k, v in model.state_dict().items())
