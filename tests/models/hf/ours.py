"""What Megatron-Core computes of a model that was loaded, alone and in a packed row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from models.gpt import KernelPath, build_gpt
from models.hf.load import load_weights
from models.hf.shape import shape_of
from models.losses import packed_seq_params
from models.shapes import GPTShape


def loaded(directory: Path, *, vocab_multiple: int = 1) -> tuple[Any, GPTShape]:
    """The model of a directory; a parallel session must be open."""
    shape = replace(shape_of(str(directory)), vocab_multiple=vocab_multiple)
    assert shape.vocab_size is not None
    gpt = build_gpt(shape, tokenizer_vocab_size=shape.vocab_size, kernels=KernelPath.TORCH)
    load_weights([gpt], shape)
    return gpt.eval(), shape


@torch.no_grad()
def logits_alone(gpt: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Of one sequence, [n, v]."""
    positions = torch.arange(len(tokens)).unsqueeze(0)
    logits: torch.Tensor = gpt(tokens.unsqueeze(0), positions, None)[0]
    return logits


@torch.no_grad()
def logits_packed(gpt: Any, sequences: list[torch.Tensor], multiple: int = 8) -> list[torch.Tensor]:
    """Of several sequences in one row, each padded to a multiple: [n, v] each."""
    padded = [-(-len(s) // multiple) * multiple for s in sequences]
    row = torch.zeros(1, sum(padded), dtype=torch.long)
    positions = torch.cat([torch.arange(n) for n in padded]).unsqueeze(0)
    starts = [sum(padded[:i]) for i in range(len(padded))]
    for start, tokens in zip(starts, sequences, strict=True):
        row[0, start : start + len(tokens)] = tokens
    ends = torch.tensor([0, *padded]).cumsum(0).int()
    packing = packed_seq_params(ends, ends, max(padded), real_boundaries=False)
    logits = gpt(row, positions, None, packed_seq_params=packing)[0]
    return [logits[a : a + len(s)] for a, s in zip(starts, sequences, strict=True)]
