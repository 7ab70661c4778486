"""A packing without samples: which lengths share a bin, and how many bins are alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.packers._compile import compiled
from data.packers._layers import BELOW, BINS, LENGTH, PER_BIN, TOP, Layers, Runs

type _Array = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Bins as patterns with multiplicities, in the order of the bins.

    Attributes:
        capacity: tokens; the most that a bin may hold.
        lengths: int64 ``[entries]``, in tokens; pattern ``p`` has the entries ``offsets[p]`` to
            ``offsets[p + 1] - 1``, in the order in which samples were placed.
        samples_per_bin: int64 ``[entries]``, how many samples of that length a bin holds.
        offsets: int64 ``[patterns + 1]``.
        bins_per_pattern: int64 ``[patterns]``, how many adjacent bins have that pattern.
    """

    capacity: int
    lengths: _Array
    samples_per_bin: _Array
    offsets: _Array
    bins_per_pattern: _Array

    @property
    def bins(self) -> int:
        """How many bins there are."""
        return int(self.bins_per_pattern.sum())

    @property
    def samples(self) -> int:
        """How many samples are in them."""
        return int((self._samples_by_pattern() * self.bins_per_pattern).sum())

    @property
    def tokens(self) -> int:
        """How many tokens are in them."""
        by_pattern = np.add.reduceat(self.lengths * self.samples_per_bin, self.offsets[:-1])
        return int((by_pattern * self.bins_per_pattern).sum()) if self.bins else 0

    @property
    def fill(self) -> float:
        """Tokens over the room in the bins; 1 where there are none."""
        return self.tokens / (self.bins * self.capacity) if self.bins else 1.0

    def patterns(self) -> Iterator[tuple[dict[int, int], int]]:
        """What is in a bin, samples by length, and how many bins in turn are like that."""
        for pattern, bins in enumerate(self.bins_per_pattern.tolist()):
            part = slice(self.offsets[pattern], self.offsets[pattern + 1])
            content: dict[int, int] = {}
            for length, samples in zip(
                self.lengths[part].tolist(), self.samples_per_bin[part].tolist(), strict=True
            ):
                content[length] = content.get(length, 0) + samples
            yield content, bins

    def _samples_by_pattern(self) -> _Array:
        if not self.lengths.size:
            return np.zeros(0, np.int64)
        return np.add.reduceat(self.samples_per_bin, self.offsets[:-1])


def plan_of(capacity: int, layers: Layers, runs: Runs) -> Plan:
    """The plan that layers and runs, in the order of their bins, amount to."""
    lengths, samples_per_bin, offsets = _patterns(layers, runs)
    return Plan(
        capacity=capacity,
        lengths=lengths,
        samples_per_bin=samples_per_bin,
        offsets=offsets,
        bins_per_pattern=runs[:, BINS].copy(),
    )


@compiled
def _patterns(layers: Layers, runs: Runs) -> tuple[_Array, _Array, _Array]:
    """Per run, the layers from the lowest to the top: lengths, samples a bin, and offsets."""
    offsets = np.zeros(runs.shape[0] + 1, np.int64)
    for run in range(runs.shape[0]):
        entries = 0
        layer = runs[run, TOP]
        while layer >= 0:
            entries += 1
            layer = layers[layer, BELOW]
        offsets[run + 1] = offsets[run] + entries
    lengths = np.empty(offsets[-1], np.int64)
    samples_per_bin = np.empty(offsets[-1], np.int64)
    for run in range(runs.shape[0]):
        layer = runs[run, TOP]
        entry = offsets[run + 1]
        while layer >= 0:
            entry -= 1
            lengths[entry] = layers[layer, LENGTH]
            samples_per_bin[entry] = layers[layer, PER_BIN]
            layer = layers[layer, BELOW]
    return lengths, samples_per_bin, offsets
