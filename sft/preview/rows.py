"""The rows that a run would train on, in its order, as numbers: no token is laid out.

lengths -> stream, in the run's order -> groups that are packed together -> rows -> steps
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from data.packers.base import ConstraintError
from data.packers.items import Bins
from data.packing.settings import PackingMode
from data.packing.steps import real_token_steps
from sft.checks import Derived
from sft.config import RunConfig
from sft.preview.stream import Stream

type Integers = npt.NDArray[np.int64]

_FEWEST_GROUPS = 8  # that are packed however long it takes


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Microbatches in the order in which they are trained on: rows, or rectangles of ``none``.

    Attributes:
        samples: int64 ``[rows]``, in each.
        real_tokens: int64 ``[rows]``.
        padded_tokens: int64 ``[rows]``, of the samples, each rounded up to the pad multiple.
        slot_tokens: int64 ``[rows]``, positions the model computes.
        squared_lengths: int64 ``[rows]``, sum of the squared real lengths.
        squared_segments: int64 ``[rows]``, sum of the squares of what the attention kernel is told
            are the segments: real or padded ones, or the lines of a rectangle.
        step: int64 ``[rows]``, the optimizer step that each belongs to, from 0 on, without gaps.
        groups: how many groups these rows are from.
        fewest: a lower bound on the rows of those groups; None for rectangles.
        unmet: groups too small for as many bins as the packer was to make.
        unconstrained: rows of those groups without ``min_bins`` and ``bins_multiple``; None where
            neither is set.
        seconds: that packing took.
    """

    samples: Integers
    real_tokens: Integers
    padded_tokens: Integers
    slot_tokens: Integers
    squared_lengths: Integers
    squared_segments: Integers
    step: Integers
    groups: int
    fewest: int | None
    unmet: int = 0
    unconstrained: int | None = None
    seconds: float = 0.0

    def __len__(self) -> int:
        return int(self.samples.size)

    def per_step(self, values: Integers) -> Integers:
        """Sums over the rows of each step, int64 ``[steps]``."""
        return np.add.reduceat(values, np.flatnonzero(np.diff(self.step, prepend=-1)))


def rectangles(stream: Stream, size: int) -> Rows:
    """What ``packing=none`` makes: each group cut into rectangles of ``size`` samples."""
    counts = np.diff(stream.offsets)
    per_group = -(-counts // size)
    group = np.repeat(np.arange(counts.size), per_group)
    nth = np.arange(group.size) - np.repeat(np.cumsum(per_group) - per_group, per_group)
    starts = stream.offsets[:-1][group] + nth * size
    samples = np.diff(np.append(starts, stream.lengths.size))
    width = np.maximum.reduceat(stream.padded, starts)
    return Rows(
        samples=samples,
        real_tokens=np.add.reduceat(stream.lengths, starts),
        padded_tokens=np.add.reduceat(stream.padded, starts),
        slot_tokens=samples * width,
        squared_lengths=np.add.reduceat(stream.lengths**2, starts),
        squared_segments=samples * width**2,
        step=group,
        groups=counts.size,
        fewest=None,
    )


def packed_rows(stream: Stream, config: RunConfig, derived: Derived, seconds: float) -> Rows:
    """What a packer makes of the groups, of all or of as many as the time allows.

    Args:
        stream: grouped for these settings.
        config: with ``packing=trainer`` or ``packing=loader``.
        derived: what follows from it.
        seconds: to pack in. The groups left out then are spread evenly over the stream.
    """
    packed = _pack(stream, config, seconds)
    loader = config.packing.mode is PackingMode.LOADER
    starts = packed.offsets[:-1]
    padded = stream.padded[packed.indices]
    real = stream.lengths[packed.indices]
    padded_tokens = np.add.reduceat(padded, starts)
    segments = real.copy() if config.packing.real_boundaries else padded.copy()
    slot_tokens = padded_tokens
    if loader:
        slot_tokens = np.full(starts.size, config.packing.capacity)
        if not config.packing.real_boundaries:
            # The tail of a row belongs to its last sample.
            segments[packed.offsets[1:] - 1] += slot_tokens - padded_tokens
    at = packed.order
    real_tokens = np.add.reduceat(real, starts)[at]
    if not loader:
        step = packed.group
    elif stream.step_tokens is not None:
        step = real_token_steps(real_tokens, stream.step_tokens)
    else:
        step = np.arange(at.size) // derived.packs_per_step
    return Rows(
        samples=np.diff(packed.offsets)[at],
        real_tokens=real_tokens,
        padded_tokens=padded_tokens[at],
        slot_tokens=slot_tokens[at],
        squared_lengths=np.add.reduceat(real**2, starts)[at],
        squared_segments=np.add.reduceat(segments**2, starts)[at],
        step=step,
        groups=packed.groups,
        fewest=packed.fewest,
        unmet=packed.unmet,
        unconstrained=packed.unconstrained,
        seconds=packed.seconds,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Packed:
    """Bins of several groups.

    Attributes:
        indices: int64 ``[n]`` into the stream, the bins one after the other.
        offsets: int64 ``[bins + 1]``.
        order: int64 ``[bins]``, the bins as they are trained on.
        group: int64 ``[bins]``, numbering the groups that were packed from 0 on.
        groups: how many were packed, empty ones too.
        fewest: a lower bound on the bins.
        unmet: groups with too few samples for the bins that were asked for.
        unconstrained: bins without the options that ask for more; None where they are not set.
        seconds: that packing took.
    """

    indices: Integers
    offsets: Integers
    order: Integers
    group: Integers
    groups: int
    fewest: int
    unmet: int
    unconstrained: int | None
    seconds: float


def _pack(stream: Stream, config: RunConfig, seconds: float) -> _Packed:
    capacity, packer = config.packing.capacity, config.packer
    plain = replace(packer, min_bins=None, bins_multiple=None)
    loader = config.packing.mode is PackingMode.LOADER
    chosen: dict[int, Bins] = {}
    orders: dict[int, Integers] = {}
    unmet = fewest = unconstrained = 0
    begin = time.perf_counter()
    for group in _spread(stream.groups).tolist():
        if len(chosen) >= _FEWEST_GROUPS and time.perf_counter() - begin > seconds:
            break
        part = stream.padded[stream.offsets[group] : stream.offsets[group + 1]]
        chosen[group] = bins = plain.pack_csr(part, capacity)
        if plain != packer:
            unconstrained += bins[1].size - 1
            try:
                chosen[group] = packer.pack_csr(part, capacity)
            except ConstraintError:
                # It stays as it is, as a run's layout leaves it; see data/packing/microbatches.py.
                unmet += 1
        count = chosen[group][1].size - 1
        orders[group] = stream.order.row_order(group, count) if loader else np.arange(count)
        fewest += stream.fewest_rows(group, capacity, packer.max_samples_per_bin)
    spent = time.perf_counter() - begin
    groups = sorted(chosen)
    counts = np.array([chosen[g][1].size - 1 for g in groups])
    before = np.cumsum(counts) - counts
    sizes = np.concatenate([np.diff(chosen[g][1]) for g in groups])
    return _Packed(
        indices=np.concatenate([chosen[g][0] + stream.offsets[g] for g in groups]),
        offsets=np.concatenate(([0], np.cumsum(sizes))),
        order=np.concatenate([orders[g] for g in groups]) + np.repeat(before, counts),
        group=np.repeat(np.arange(counts.size), counts),
        groups=len(groups),
        fewest=fewest,
        unmet=unmet,
        unconstrained=None if plain == packer else unconstrained,
        seconds=spent,
    )


def _spread(count: int) -> Integers:
    """The numbers below ``count``, ordered so that the first few of them are spread evenly."""
    bits = max(1, (count - 1).bit_length())
    numbers = np.arange(1 << bits)
    mirrored = np.zeros_like(numbers)
    for bit in range(bits):
        mirrored |= (numbers >> bit & 1) << (bits - 1 - bit)
    return mirrored[mirrored < count]
