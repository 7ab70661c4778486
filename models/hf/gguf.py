"""GGUF files: their header under Hugging Face's keys and names. No torch here.

The format is llama.cpp's (``ggml/docs/gguf.md`` there): a magic, counts, metadata, one entry for
each tensor, then the tensors. The ``gguf`` package reads it too, but makes an array of every token
of the vocabulary on the way, which takes seconds; it is used for what is intricate, the
dequantisation.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from models.hf.families import FAMILIES, Family

_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_VERSIONS = (2, 3)
_FETCH = "fetch it again, or name another"
DAMAGED = f"is cut short or damaged; {_FETCH}"

# Metadata, less the architecture in front, and the key of a configuration that it is.
_KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_experts",
}
_TOKENS = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.eos_token_id": "eos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A tensor in the file.

    Attributes:
        shape: as of an array in memory, rows first.
        kind: GGML's number for how it is quantised.
        start: bytes from the start of the file.
    """

    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a file holds.

    Attributes:
        metadata: scalars and strings; of an array only that it is there.
        tensors: by their names in the file.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, Entry]

    @property
    def family(self) -> Family | None:
        """The architecture; None: an unknown one."""
        named = self.metadata.get("general.architecture")
        return next((f for f in FAMILIES if f.gguf is not None and f.gguf == named), None)


def read_header(path: Path, init_from: str) -> Header:
    """The header of a file.

    Args:
        path: of the file.
        init_from: as configured, for messages.

    Raises:
        ValueError: it is no GGUF file, or is cut short.
    """
    try:
        status = path.stat()
        if status.st_size == 0:
            raise ValueError(f"is no GGUF file, but empty; {_FETCH}")
        return _read_header(path.resolve(), status.st_mtime_ns, status.st_size)
    except OSError as error:
        why = f"cannot be read ({error.strerror or error}); make it readable for this user"
        raise ValueError(f"init_from={init_from}: {why}") from error
    except ValueError as error:
        raise ValueError(f"init_from={init_from}: {error}") from error


@lru_cache(maxsize=4)  # until the file changes: settings, checks and weights each want it
def _read_header(path: Path, changed_ns: int, size: int) -> Header:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Scanner(data).header()
    except (struct.error, UnicodeDecodeError, KeyError, OverflowError) as error:
        raise ValueError(DAMAGED) from error


class _Scanner:
    """Reads a header from front to back."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def header(self) -> Header:
        magic, version = self._take("4sI")
        if magic != b"GGUF":
            raise ValueError(f"is no GGUF file; {_FETCH}")
        if version not in _VERSIONS:
            raise ValueError(
                f"is GGUF of version {version}; 2 and 3 can be read, so convert the model again"
            )
        tensors, entries = self._take("QQ")
        metadata = {self._text(): self._value(*self._take("I")) for _ in range(entries)}
        found = [self._entry() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(DAMAGED)
        start = -(-self.at // alignment) * alignment
        placed = {
            name: Entry(shape=shape, kind=kind, start=start + offset)
            for name, shape, kind, offset in found
        }
        return Header(metadata=metadata, tensors=placed)

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        (dimensions,) = self._take("I")
        shape = self._take(f"{dimensions}Q")
        kind, offset = self._take("IQ")
        return name, tuple(reversed(shape)), kind, offset

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            inner, count = self._take("IQ")
            if inner in (_STRING, _ARRAY):
                for _ in range(count):
                    self._value(inner)
            else:
                self.at += count * struct.calcsize(_SCALARS[inner])
            return "[...]"
        (value,) = self._take(_SCALARS[kind])
        # The decimal that was meant: 1e-05, not 9.999999747e-06.
        return float(str(np.float32(value))) if kind == _FLOAT32 else value

    def _text(self) -> str:
        (length,) = self._take("Q")
        self.at += length
        text = self.data[self.at - length : self.at]
        if len(text) < length:
            raise struct.error
        return text.decode()

    def _take(self, layout: str) -> tuple[Any, ...]:
        layout = f"<{layout}"
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return values


def gguf_config(path: Path, init_from: str) -> dict[str, Any]:
    """The header as a configuration of Hugging Face's.

    Raises:
        ValueError: as :func:`read_header`; or it is a part of a file, or the rotary scaling is
            stored in a way that cannot be built here.
    """
    header = read_header(path, init_from)
    _refuse_part(header, init_from)
    metadata, prefix = header.metadata, header.metadata.get("general.architecture", "")
    family = header.family
    config: dict[str, Any] = {
        "architectures": [family.architecture if family else prefix],
        "model_type": family.model_type if family else prefix,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "use_sliding_window": f"{prefix}.attention.sliding_window" in metadata,
    }
    for key, name in {f"{prefix}.{k}": v for k, v in _KEYS.items()}.items():
        if key in metadata:
            config[name] = metadata[key]
    config |= {name: metadata[key] for key, name in _TOKENS.items() if key in metadata}
    if embedding := header.tensors.get("token_embd.weight"):
        config["vocab_size"] = embedding.shape[0]
    if "head_dim" not in config and f"{prefix}.rope.dimension_count" in metadata:
        config["head_dim"] = metadata[f"{prefix}.rope.dimension_count"]
    config["rope_scaling"] = _scaling(header, prefix, init_from)
    return config


def _refuse_part(header: Header, init_from: str) -> None:
    """Of a file that was split the first part holds the settings, and none all the tensors."""
    parts = header.metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:  # joined again, it says 0
        raise ValueError(
            f"init_from={init_from}: is one of {parts} parts of a GGUF file; join them with "
            "llama.cpp's llama-gguf-split --merge, and name what it writes"
        )


def _scaling(header: Header, prefix: str, init_from: str) -> dict[str, Any] | None:
    if "rope_freqs.weight" in header.tensors:
        raise ValueError(
            f"init_from={init_from}: holds rope_freqs.weight, Llama 3.1's rotary scaling without "
            "its settings; take the Hugging Face directory that the file was made from"
        )
    kind = header.metadata.get(f"{prefix}.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind != "linear":
        raise ValueError(
            f"init_from={init_from}: its header has {prefix}.rope.scaling.type={kind}; of a GGUF "
            "file linear can be read; take the Hugging Face directory that it was made from"
        )
    return {"rope_type": "linear", "factor": header.metadata.get(f"{prefix}.rope.scaling.factor")}


def hf_name(name: str) -> str:
    """Hugging Face's name of a tensor; the name itself where it is none that is known."""
    stem, _, suffix = name.rpartition(".")
    prefix, part = "", stem
    if stem.startswith("blk."):
        layer, _, part = stem.removeprefix("blk.").partition(".")
        prefix = f"model.layers.{layer}."
    return f"{prefix}{_NAMES[part]}.{suffix}" if part in _NAMES else name
