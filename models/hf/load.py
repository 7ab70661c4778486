"""Weights of a published model into Megatron-Core's, one parameter at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from models.hf.names import fuse, parameter_of, weights
from models.hf.sources import TensorSource, open_tensors
from models.shapes import GPTShape

# Tables of rotary frequencies that old checkpoints carry: they follow from the configuration.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
_SHOWN = 3
_TIED, _TIED_COPY = "embedding.word_embeddings.weight", "output_layer.weight"
_MISMATCH = "weights and configuration are not of one model, so fetch both again"


def check_weights(shape: GPTShape) -> None:
    """Refuse a model whose tensors are not those that its shape needs; only headers are read.

    Raises:
        ValueError: naming tensors that are missing, too many, or of another shape.
    """
    assert shape.init_from is not None and shape.vocab_size is not None
    _match(shape, open_tensors(shape.init_from))


@torch.no_grad()
def load_weights(chunks: Sequence[Any], shape: GPTShape) -> None:
    """Fill a model with the weights that ``shape.init_from`` names; every tensor is used once.

    Rows of padding in the vocabulary become 0. No more than one parameter is in memory besides the
    model, whole and fused.

    Args:
        chunks: GPTModels of this shape, bare: what this rank has of the model.
        shape: with ``init_from`` and ``vocab_size``.

    Raises:
        ValueError: as :func:`check_weights`.
    """
    assert shape.init_from is not None and shape.vocab_size is not None
    source = open_tensors(shape.init_from)
    _match(shape, source)
    parameters = _parameters(chunks, shape)
    for weight in weights(shape, shape.vocab_size):
        if not any(name in parameters for name in weight.names):
            continue  # another stage of the pipeline has it
        parameter = parameters.pop(parameter_of(weight, parameters))
        part = fuse(
            weight,
            [source.read(name) for name in weight.tensors],
            shape.num_query_groups,
            rows=shape.padded_vocab_size(shape.vocab_size),
            rank=parallel_state.get_tensor_model_parallel_rank(),
            ranks=parallel_state.get_tensor_model_parallel_world_size(),
        )
        assert part.shape == parameter.shape, f"{weight.names[0]}: {part.shape}"
        parameter.copy_(part)
    assert not parameters, f"not in the table: {sorted(parameters)}"


def _parameters(chunks: Sequence[Any], shape: GPTShape) -> dict[str, Tensor]:
    """What this rank has, by names that count the layers of the whole model."""
    found: dict[str, Tensor] = {}
    for chunk in chunks:
        numbers = {
            f"decoder.layers.{here}.": f"decoder.layers.{layer.layer_number - 1}."
            for here, layer in enumerate(chunk.decoder.layers)
        }
        for name, parameter in chunk.named_parameters():
            prefix = re.match(r"decoder\.layers\.\d+\.", name)
            found[numbers[prefix[0]] + name[prefix.end() :] if prefix else name] = parameter
    if shape.tie_embeddings and _TIED_COPY in found and _TIED not in found:
        # The last stage of a pipeline keeps the embedding for its output layer.
        found[_TIED] = found.pop(_TIED_COPY)
    return found


def _match(shape: GPTShape, source: TensorSource) -> None:
    assert shape.vocab_size is not None
    needed = {n: s for w in weights(shape, shape.vocab_size) for n, s in w.tensors.items()}
    found = {n: s for n, s in source.shapes.items() if not _DERIVED.fullmatch(n)}
    if shape.tie_embeddings and "lm_head.weight" in found:
        _check_tied(shape, source)
        del found["lm_head.weight"]
    _refuse(shape, "lacks", [n for n in needed if n not in found], needed)
    too_many = [n for n in found if n not in needed]
    _refuse(shape, "has, and a model of its configuration does not,", too_many, found)
    for name, size in needed.items():
        if found[name] != size:
            raise ValueError(
                f"init_from={shape.init_from}: {name} is {_by(found[name])}, and its configuration "
                f"makes it {_by(size)}; {_MISMATCH}"
            )


def _refuse(
    shape: GPTShape, what: str, names: list[str], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    if names:
        listed = ", ".join(f"{n} ({_by(shapes[n])})" for n in names[:_SHOWN])
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise ValueError(f"init_from={shape.init_from}: {what} {listed}{more}; {_MISMATCH}")


def _check_tied(shape: GPTShape, source: TensorSource) -> None:
    """A copy of the embedding under the output layer's name is no harm, another matrix is."""
    embedding, output = source.read("model.embed_tokens.weight"), source.read("lm_head.weight")
    if not torch.equal(embedding, output):
        raise ValueError(
            f"init_from={shape.init_from}: lm_head.weight differs from model.embed_tokens.weight, "
            "and its configuration has tie_word_embeddings=true; correct the one that is wrong"
        )


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
