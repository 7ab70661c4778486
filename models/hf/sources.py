"""The tensors of a published model, one at a time, under Hugging Face's names."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.hf.config import read_json
from models.hf.gguf import DAMAGED, Entry, hf_name, read_header
from models.hf.location import locate

_INDEX = "model.safetensors.index.json"
_PRECISIONS = {"F64", "F32", "F16", "BF16"}


class TensorSource(ABC):
    """What holds the tensors."""

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape, by its name."""

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """A tensor, on the CPU, in float32."""


def open_tensors(init_from: str) -> TensorSource:
    """The tensors of the model that ``model.init_from`` names.

    Raises:
        ValueError: there are none, or they cannot be read.
    """
    where = locate(init_from, weights=True)
    if where.is_file():
        return GGUFTensors(init_from, where)
    return SafetensorsTensors(init_from, where)


class SafetensorsTensors(TensorSource):
    """A directory with ``model.safetensors``, or with several files and their index."""

    def __init__(self, init_from: str, directory: Path) -> None:
        self._files: dict[str, Path] = {}
        self._headers: dict[str, Mapping[str, Any]] = {}
        self._open: dict[Path, Any] = {}
        for path in _weight_files(init_from, directory):
            for name, entry in _safetensors_header(path, init_from).items():
                if name in self._files:
                    raise ValueError(
                        f"init_from={init_from}: {name} is in both {self._files[name].name} and "
                        f"{path.name}; fetch the model again into an empty directory"
                    )
                if entry["dtype"] not in _PRECISIONS:
                    raise ValueError(
                        f"init_from={init_from}: {name} in {path.name} is {entry['dtype']}; "
                        "weights of 16, 32 or 64 bits can be read, so take the model as it was "
                        "before it was quantised, or a GGUF file"
                    )
                self._files[name], self._headers[name] = path, entry

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape, by its name."""
        return {name: tuple(entry["shape"]) for name, entry in self._headers.items()}

    def read(self, name: str) -> Tensor:
        """A tensor, on the CPU, in float32."""
        from safetensors import safe_open

        path = self._files[name]
        if path not in self._open:
            self._open[path] = safe_open(path, framework="pt")
        tensor: Tensor = self._open[path].get_tensor(name)
        return tensor.float()


def _weight_files(init_from: str, directory: Path) -> list[Path]:
    index = read_json(directory / _INDEX, init_from)
    if index is None:
        single = directory / "model.safetensors"
        if single.exists():
            return [single]
        pickles = sorted(p.name for p in directory.glob("pytorch_model*.bin"))
        if pickles:
            raise ValueError(
                f"init_from={init_from}: its weights are pickled ({pickles[0]}), which can run "
                "code when it is read; load it once with transformers and save it again with "
                "save_pretrained, which writes safetensors"
            )
        raise ValueError(
            f"init_from={init_from}: holds no model.safetensors and no {_INDEX}; fetch the model's "
            "weights too, or name a GGUF file"
        )
    names = index.get("weight_map")
    if not isinstance(names, Mapping):
        raise ValueError(f"init_from={init_from}: {_INDEX} has no weight_map; fetch it again")
    paths = [directory / name for name in sorted(set(names.values()))]
    for path in paths:
        if not path.exists():
            raise ValueError(
                f"init_from={init_from}: {_INDEX} names {path.name}, which is missing; fetch that "
                "file too"
            )
    return paths


def _safetensors_header(path: Path, init_from: str) -> dict[str, Mapping[str, Any]]:
    """Name to dtype and shape; the file holds the length of a JSON text, and that text."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length < size else b""
    except OSError as error:
        raise ValueError(
            f"init_from={init_from}: {path} cannot be read ({error.strerror or error}); make it "
            "readable for this user"
        ) from error
    damaged = f"init_from={init_from}: {path} is cut short or damaged; fetch it again"
    try:
        header: dict[str, Mapping[str, Any]] = json.loads(text)
        header.pop("__metadata__", None)
        ends = [entry["data_offsets"][1] for entry in header.values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(damaged) from error
    if 8 + length + max(ends, default=0) != size:
        raise ValueError(damaged)
    return header


class GGUFTensors(TensorSource):
    """A GGUF file; what is quantised is dequantised as it is read."""

    def __init__(self, init_from: str, path: Path) -> None:
        header = read_header(path, init_from)
        _refuse_unreadable(init_from, header.tensors)
        try:
            ends = [entry.start + _stored_bytes(entry) for entry in header.tensors.values()]
        except ValueError as error:  # rows that are no whole blocks
            raise ValueError(f"init_from={init_from}: {DAMAGED}") from error
        if max(ends, default=0) > path.stat().st_size:
            raise ValueError(f"init_from={init_from}: {DAMAGED}")
        self._path = path
        self._entries: dict[str, tuple[str, Entry]] = {
            hf_name(name): (name, entry) for name, entry in header.tensors.items()
        }
        self._rotated = header.family is not None and header.family.rotated_gguf
        prefix = header.metadata["general.architecture"]
        heads = int(header.metadata[f"{prefix}.attention.head_count"])
        keys = int(header.metadata.get(f"{prefix}.attention.head_count_kv", heads))
        self._heads = {"attn_q": heads, "attn_k": keys}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape, by its name."""
        return {name: entry.shape for name, (_, entry) in self._entries.items()}

    def read(self, name: str) -> Tensor:
        """A tensor, on the CPU, in float32."""
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize, quant_shape_to_byte_shape

        stored, entry = self._entries[name]
        kind = GGMLQuantizationType(entry.kind)
        shape = quant_shape_to_byte_shape(entry.shape, kind)
        raw = np.memmap(self._path, np.uint8, "r", entry.start, shape)
        values = np.array(dequantize(raw, kind), dtype=np.float32).reshape(entry.shape)
        heads = self._heads.get(stored.removesuffix(".weight").rpartition(".")[2])
        if heads is not None and self._rotated:
            values = _in_halves(values, heads)
        return torch.from_numpy(values)


def _refuse_unreadable(init_from: str, tensors: Mapping[str, Entry]) -> None:
    """Dequantise a block of zeros of each kind; tensors are read when training has begun."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    for number, name in {entry.kind: name for name, entry in tensors.items()}.items():
        shown = f"kind {number}"
        try:
            kind = GGMLQuantizationType(number)
            shown = kind.name
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except (ValueError, NotImplementedError) as error:  # an unknown kind, one without a way
            raise ValueError(
                f"init_from={init_from}: {name} is quantised as {shown}, which the gguf package "
                "here cannot undo; take a file that is quantised in another way, as Q8_0 or F16"
            ) from error


def _stored_bytes(entry: Entry) -> int:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quant_shape_to_byte_shape

    return math.prod(quant_shape_to_byte_shape(entry.shape, GGMLQuantizationType(entry.kind)))


def _in_halves(values: np.ndarray[Any, np.dtype[np.float32]], heads: int) -> Any:
    """Undo llama.cpp's order of a head's channels, [n * d, ...].

    It turns neighbours, where Hugging Face turns channel i with channel i + d/2: of each head its
    rows alternate between the two halves.
    """
    return np.ascontiguousarray(
        values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    )
