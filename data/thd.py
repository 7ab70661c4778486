"""From samples to the tensors a model takes; the only place that lays tokens out.

Two layouts, both read by the same model:

- a :class:`Row`, ``[1, T]``: a bin of samples end to end (THD), with its boundaries;
- a :class:`Rectangle`, ``[b, s]``: one sample a line, padded on the right.

Worked example: A has 5 tokens, B has 10, the pad multiple is 4 and the capacity 36.

====================  ===========  ===========
                      width=None   width=36
====================  ===========  ===========
T                     20           36
cu_seqlens            [0, 5, 15]   [0, 5, 15]
cu_seqlens_padded     [0, 8, 20]   [0, 8, 36]
max_seqlen            12           28
====================  ===========  ===========

Padding stands behind the sample it belongs to. Attention is causal, so no real token ever sees
it; the loss mask is 0 there, so it is never trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from data.padding import round_up
from data.sample import Sample


@dataclass(frozen=True, eq=False)
class Slots:
    """What both layouts share: every position the model computes.

    Attributes:
        tokens: int64 ``[b, s]``.
        labels: int64 ``[b, s]``, already shifted inside each sample; 0 where nothing is predicted.
        position_ids: int64 ``[b, s]``, restarting at each sample.
        loss_mask: float32 ``[b, s]``, 1 where the label counts.
        source_ids: the conversations in it, in order.
        real_tokens: how many positions hold a token of a sample.
        loss_tokens: how many positions count in the loss.
        lengths: tokens of each sample, in order.
    """

    tokens: Tensor
    labels: Tensor
    position_ids: Tensor
    loss_mask: Tensor
    source_ids: tuple[str, ...]
    real_tokens: int
    loss_tokens: int
    lengths: tuple[int, ...]

    @property
    def slot_tokens(self) -> int:
        """All positions the model computes, padding included."""
        return self.tokens.numel()

    @property
    def token_mask(self) -> Tensor:
        """The loss mask under the name that other packed batches use for it."""
        return self.loss_mask

    # Tensors cross a process boundary as plain bytes. Torch's own way is shared memory, which
    # keeps a file descriptor open per tensor: a buffer of a few hundred rows would run out.
    def __getstate__(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v.numpy() if isinstance(v, Tensor) else v for k, v in values.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            is_array = isinstance(value, np.ndarray)
            object.__setattr__(self, name, torch.from_numpy(value) if is_array else value)


@dataclass(frozen=True, eq=False)
class Row(Slots):
    """One bin of samples as one THD row, ``[1, T]``.

    Attributes:
        cu_seqlens: int32 ``[n + 1]``, cumulative real lengths.
        cu_seqlens_padded: int32 ``[n + 1]``, where each padded sample ends; the last equals T.
        max_seqlen: the longest padded segment, in tokens.
    """

    cu_seqlens: Tensor
    cu_seqlens_padded: Tensor
    max_seqlen: int

    def __post_init__(self) -> None:
        validate_boundaries(
            self.cu_seqlens.numpy(),
            self.cu_seqlens_padded.numpy(),
            width=self.tokens.shape[1],
            max_seqlen=self.max_seqlen,
        )


@dataclass(frozen=True, eq=False)
class Rectangle(Slots):
    """One sample a line, padded on the right to the longest: ``[b, s]``."""


def build_row(
    samples: Sequence[Sample], *, pad_multiple: int = 1, width: int | None = None, pad_id: int = 0
) -> Row:
    """Lay the samples of one bin end to end.

    Args:
        samples: at least one.
        pad_multiple: each sample's padded length is a multiple of it.
        width: T. None: as wide as the padded samples. A number: exactly that wide, the tail
            belonging to the last sample.
        pad_id: the token that stands in padding.

    Raises:
        ValueError: no samples, samples wider than ``width``, or a width off the pad multiple.
    """
    if not samples:
        raise ValueError("a row needs at least one sample")
    real = np.fromiter((len(s) for s in samples), dtype=np.int64, count=len(samples))
    padded = -(-real // pad_multiple) * pad_multiple
    needed = int(padded.sum())
    if width is not None:
        if width % pad_multiple:
            raise ValueError(f"width {width} is not a multiple of the pad multiple {pad_multiple}")
        if needed > width:
            raise ValueError(f"{needed} padded tokens do not fit a row of width {width}")
        padded[-1] += width - needed
    total = int(padded.sum())
    grid = _Grid(1, total, pad_id)
    starts = np.cumsum(padded) - padded
    for sample, start, extent in zip(samples, starts.tolist(), padded.tolist(), strict=True):
        grid.place(sample, line=0, start=start, extent=extent)
    return Row(
        **grid.slots(samples),
        cu_seqlens=_boundaries(real),
        cu_seqlens_padded=_boundaries(padded),
        max_seqlen=int(padded.max()),
    )


def build_rectangle(
    samples: Sequence[Sample],
    *,
    pad_multiple: int = 1,
    shape: tuple[int, int] | None = None,
    pad_id: int = 0,
) -> Rectangle:
    """Lay one sample a line, padded on the right to the longest, rounded to the pad multiple.

    Args:
        samples: at least one.
        pad_multiple: the width is a multiple of it.
        shape: lines and width; None: as many and as wide as the samples need. Lines that are left
            hold padding only.
        pad_id: the token that stands in padding.

    Raises:
        ValueError: no samples, or more or longer ones than the shape has room for.
    """
    if not samples:
        raise ValueError("a rectangle needs at least one sample")
    needed = len(samples), round_up(max(len(s) for s in samples), pad_multiple)
    lines, width = needed if shape is None else shape
    if needed[0] > lines or needed[1] > width:
        raise ValueError(f"samples of {needed} do not fit a rectangle of {shape}")
    grid = _Grid(lines, width, pad_id)
    for line in range(len(samples), lines):
        grid.position_ids[line] = np.arange(width)
    for line, sample in enumerate(samples):
        grid.place(sample, line=line, start=0, extent=width)
    return Rectangle(**grid.slots(samples))


def padding_row(width: int, *, pad_id: int = 0) -> Row:
    """A row of padding: one segment, no sample, no loss. What a process computes for company.

    Args:
        width: T.
        pad_id: the token that stands in padding.
    """
    boundaries = _boundaries(np.array([width]))
    return Row(
        **_only_padding(1, width, pad_id),
        cu_seqlens=boundaries,
        cu_seqlens_padded=boundaries,
        max_seqlen=width,
    )


def padding_rectangle(shape: tuple[int, int], *, pad_id: int = 0) -> Rectangle:
    """A rectangle of padding, of so many lines and so wide: no sample, no loss."""
    return Rectangle(**_only_padding(*shape, pad_id))


def silent(like: Row | Rectangle) -> Row | Rectangle:
    """A microbatch of the same shape that counts for nothing."""
    return replace(
        like,
        loss_mask=torch.zeros_like(like.loss_mask),
        source_ids=(),
        real_tokens=0,
        loss_tokens=0,
        lengths=(),
    )


def validate_boundaries(
    real: npt.NDArray[Any], padded: npt.NDArray[Any], *, width: int, max_seqlen: int
) -> None:
    """Refuse boundaries that an attention kernel would misread.

    Kernels check little of this: a wrong boundary trains on, silently.

    Args:
        real: ``[n + 1]``, cumulative real lengths.
        padded: ``[n + 1]``, cumulative padded lengths.
        width: T, the row's positions.
        max_seqlen: the longest padded segment.

    Raises:
        ValueError: naming what is wrong and the boundaries.
    """

    def refuse(what: str) -> None:
        raise ValueError(
            f"row boundaries: {what} (cu_seqlens {real.tolist()}, cu_seqlens_padded "
            f"{padded.tolist()}, width {width}, max_seqlen {max_seqlen!r})"
        )

    if real.dtype != np.int32 or padded.dtype != np.int32:
        refuse(f"must be int32, got {real.dtype} and {padded.dtype}")
    if real.ndim != 1 or real.shape != padded.shape or real.size < 2:
        refuse("must be one-dimensional, equally long, with at least one segment")
    if real[0] != 0 or padded[0] != 0:
        refuse("must start at 0")
    real_lengths, padded_lengths = np.diff(real), np.diff(padded)
    if (real_lengths < 1).any() or (padded_lengths < 1).any():
        refuse("must be strictly increasing: no empty segment")
    if (real_lengths > padded_lengths).any():
        refuse("a real segment is longer than its padded extent")
    if padded[-1] != width:
        refuse("the last padded boundary must be the row's width")
    if type(max_seqlen) is not int or max_seqlen != padded_lengths.max():
        refuse("max_seqlen must be a Python int, the longest padded segment")


def _boundaries(lengths: npt.NDArray[np.int64]) -> Tensor:
    out = np.zeros(lengths.size + 1, dtype=np.int32)
    np.cumsum(lengths, out=out[1:])
    return torch.from_numpy(out)


def _only_padding(lines: int, width: int, pad_id: int) -> dict[str, Any]:
    grid = _Grid(lines, width, pad_id)
    grid.position_ids[:] = np.arange(width)
    return grid.slots(())


class _Grid:
    """Positions being filled, ``[lines, width]``; numpy, because a sample is placed by slices."""

    def __init__(self, lines: int, width: int, pad_id: int) -> None:
        shape = (lines, width)
        self.tokens = np.full(shape, pad_id, dtype=np.int64)
        self.labels = np.zeros(shape, dtype=np.int64)
        self.position_ids = np.zeros(shape, dtype=np.int64)
        self.loss_mask = np.zeros(shape, dtype=np.float32)

    def place(self, sample: Sample, *, line: int, start: int, extent: int) -> None:
        """Write one sample at ``start``; positions run on over its padding, up to ``extent``."""
        n = len(sample)
        self.tokens[line, start : start + n] = sample.tokens
        # Position i predicts token i + 1 of the same sample, so the last position has no label.
        self.labels[line, start : start + n - 1] = sample.tokens[1:]
        self.loss_mask[line, start : start + n - 1] = sample.targets[1:]
        self.position_ids[line, start : start + extent] = np.arange(extent)

    def slots(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The fields that both layouts share."""
        return {
            "tokens": torch.from_numpy(self.tokens),
            "labels": torch.from_numpy(self.labels),
            "position_ids": torch.from_numpy(self.position_ids),
            "loss_mask": torch.from_numpy(self.loss_mask),
            "source_ids": tuple(s.source_id for s in samples),
            "real_tokens": sum(len(s) for s in samples),
            "loss_tokens": sum(s.loss_tokens for s in samples),
            "lengths": tuple(len(s) for s in samples),
        }
