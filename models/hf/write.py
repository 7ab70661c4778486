"""A trained model as ``transformers`` reads it: its weights and its configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.hf.config import read_config
from models.hf.families import FAMILIES, family_of_shape
from models.hf.location import locate
from models.hf.names import Weight, parameter_of, take_apart, weights
from models.hf.rope import write_scaling
from models.shapes import GPTShape

MOST_BYTES_PER_FILE = 5 * 10**9
# What a configuration says of how and by whom its weights were written before.
_OF_THE_OLD_FILES = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")


def tensors_of(model: Any, shape: GPTShape, vocab_size: int) -> Iterator[tuple[str, Tensor]]:
    """The model's weights under Hugging Face's names, one after the other.

    Args:
        model: a GPTModel of this shape, bare, whole on this rank, without adapters.
        shape: the model's.
        vocab_size: rows of the embedding without padding.

    Yields:
        Names and tensors; the tensors may be views of the model's.
    """
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for weight in weights(shape, vocab_size):
        whole = parameters.pop(parameter_of(weight, parameters))
        yield from zip(
            weight.tensors, take_apart(weight, [whole], shape.num_query_groups), strict=True
        )
    assert not parameters, f"not in the table: {sorted(parameters)}"


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write one file that whoever may read a file of this user's can read.

    ``safetensors`` makes one for its owner's eyes only, and an export is there to be shared.

    Raises:
        OSError: it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:  # of a full disk too, and it is no OSError
        raise OSError(str(error)) from error
    path.chmod(mode)


def write_weights(
    model: Any,
    shape: GPTShape,
    directory: Path,
    *,
    vocab_size: int,
    dtype: torch.dtype,
    most_bytes: int = MOST_BYTES_PER_FILE,
) -> None:
    """Write ``model.safetensors``, or several files and their index; one is in memory at a time.

    Args:
        model: as for :func:`tensors_of`.
        shape: the model's.
        directory: exists.
        vocab_size: rows of the embedding without padding.
        dtype: to write in.
        most_bytes: a file's, unless one tensor alone has more.

    Raises:
        OSError: it cannot be written.
    """
    files = _files(list(weights(shape, vocab_size)), dtype.itemsize, most_bytes)
    tensors = tensors_of(model, shape, vocab_size)
    for file, names in files.items():
        content = {}
        for name in names:
            found, tensor = next(tensors)
            assert found == name
            # A copy: parts of a fused parameter share its memory, which the format refuses.
            content[name] = tensor.to("cpu", dtype, copy=True).contiguous()
        save_tensors(content, directory / file)
    assert next(tensors, None) is None
    if len(files) > 1:
        _write_index(list(weights(shape, vocab_size)), files, dtype.itemsize, directory)


def _files(table: list[Weight], item_bytes: int, most_bytes: int) -> dict[str, list[str]]:
    """Which file holds which tensors, in the order of the table."""
    groups: list[list[str]] = []
    free = 0
    for weight in table:
        for name, size in weight.tensors.items():
            needed = _elements(size) * item_bytes
            if not groups or needed > free:
                groups.append([])
                free = most_bytes
            groups[-1].append(name)
            free -= needed
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {
        f"model-{i:05d}-of-{len(groups):05d}.safetensors": names
        for i, names in enumerate(groups, start=1)
    }


def _write_index(
    table: list[Weight], files: Mapping[str, list[str]], item_bytes: int, directory: Path
) -> None:
    elements = sum(_elements(size) for weight in table for size in weight.tensors.values())
    content = {
        "metadata": {"total_size": elements * item_bytes, "total_parameters": elements},
        "weight_map": {name: file for file, names in files.items() for name in names},
    }
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _elements(size: tuple[int, ...]) -> int:
    count = 1
    for extent in size:
        count *= extent
    return count


def published_config(shape: GPTShape, vocab_size: int) -> dict[str, Any]:
    """The content of ``config.json``: the original's where there is one, else the shape's.

    Args:
        shape: the model's.
        vocab_size: rows of the embedding without padding.

    Raises:
        ValueError: no architecture of ``transformers`` has this shape; or the original cannot be
            read any more.
    """
    if shape.init_from is None:
        return _config_of_shape(shape, vocab_size)
    original = read_config(shape.init_from)
    if locate(shape.init_from).is_file():  # GGUF: its header has no more than the shape, but ids
        ids = {key: value for key, value in original.items() if key.endswith("_token_id")}
        return _config_of_shape(shape, vocab_size) | ids
    return {key: value for key, value in original.items() if key not in _OF_THE_OLD_FILES}


def with_precision(config: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """A configuration that says what its weights are written in, under its old name as well."""
    name = str(dtype).removeprefix("torch.")
    return {**config, "dtype": name, "torch_dtype": name}


def _config_of_shape(shape: GPTShape, vocab_size: int) -> dict[str, Any]:
    family = family_of_shape(qkv_bias=shape.qkv_bias, qk_norm=shape.qk_norm)
    assert family in FAMILIES
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_query_groups,
        "head_dim": shape.channels_per_head,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context_length,
        "rms_norm_eps": shape.norm_epsilon,
        "initializer_range": shape.init_std,
        "tie_word_embeddings": shape.tie_embeddings,
        # The keys of before transformers 5, which reads them too.
        "rope_theta": shape.rotary_base,
        "rope_scaling": write_scaling(shape.rope_scaling),
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
