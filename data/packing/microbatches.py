"""Where the two paths meet: a step's batch becomes microbatches here, and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from data.packers.base import ConstraintError, Packer
from data.packers.bounds import lower_bound
from data.packing.batch import StepBatch
from data.packing.settings import PackingMode
from data.sample import Sample
from data.thd import (
    Rectangle,
    Row,
    build_rectangle,
    build_row,
    padding_rectangle,
    padding_row,
)

_log = logging.getLogger(__name__)
_told: set[Packer] = set()  # packers whose wish for more bins could not be met

Microbatch = Row | Rectangle


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How samples become slots; the loader and the trainer share one.

    Attributes:
        mode: who packs.
        packer: which algorithm, for the two modes that pack.
        capacity: tokens; the widest row.
        pad_multiple: tokens.
        pad_id: the token that stands in padding.
        micro_batch_size: samples per rectangle (``none`` only).
        one_shape: all microbatches of a step have the same lines and width, as the stages of a
            pipeline need it.
    """

    mode: PackingMode
    packer: Packer
    capacity: int
    pad_multiple: int
    pad_id: int
    micro_batch_size: int
    one_shape: bool = False

    def bins(self, lengths: Sequence[int]) -> list[list[int]]:
        """Which samples share a row, by index; the packer sees padded lengths.

        Where there are too few samples for as many bins as the packer is to make (the last ones of
        an epoch, say), it makes what it would make without that, and the log says so.

        Args:
            lengths: real lengths, in tokens.
        """
        padded = self._padded(lengths)
        try:
            return self.packer.pack(padded, self.capacity)
        except ConstraintError as error:
            packer = replace(self.packer, min_bins=None, bins_multiple=None)
            bins = packer.pack(padded, self.capacity)
            # On the console once, which shows warnings; in the log file every time.
            grade = logging.INFO if self.packer in _told else logging.WARNING
            _told.add(self.packer)
            _log.log(grade, "%s; they are packed into %d", error, len(bins))
            return bins

    def fewest_rows(self, lengths: Sequence[int]) -> int:
        """A lower bound on the rows that any packer needs for these real lengths."""
        return lower_bound(
            self._padded(lengths),
            self.capacity,
            max_samples_per_bin=self.packer.max_samples_per_bin,
        )

    def trainer_row(self, samples: Sequence[Sample], width: int | None = None) -> Row:
        """A row as wide as its samples need, or of a given width."""
        return build_row(samples, pad_multiple=self.pad_multiple, width=width, pad_id=self.pad_id)

    def loader_row(self, samples: Sequence[Sample]) -> Row:
        """A row of the full capacity: the loader does not know what else is coming."""
        return build_row(
            samples, pad_multiple=self.pad_multiple, width=self.capacity, pad_id=self.pad_id
        )

    def _padded(self, lengths: Sequence[int]) -> npt.NDArray[np.int64]:
        real = np.asarray(lengths, dtype=np.int64)
        return -(-real // self.pad_multiple) * self.pad_multiple


def to_microbatches(batch: StepBatch, layout: Layout) -> list[Microbatch]:
    """Turn either kind of batch into what the model takes, one tensor group a microbatch.

    Rows that carry their boundaries are used as they are; samples are packed now (``trainer``)
    or set into rectangles (``none``).
    """
    if batch.rows:
        return list(_prepacked(batch))
    samples = batch.samples
    if batch.bins is not None:
        return [_laid_out([samples[i] for i in b], batch.shape, layout) for b in batch.bins]
    if layout.mode is PackingMode.NONE:
        size = layout.micro_batch_size
        return [
            build_rectangle(
                samples[i : i + size], pad_multiple=layout.pad_multiple, pad_id=layout.pad_id
            )
            for i in range(0, len(samples), size)
        ]
    bins = layout.bins([len(s) for s in samples])
    return [layout.trainer_row([samples[i] for i in members]) for members in bins]


def _laid_out(
    samples: Sequence[Sample], shape: tuple[int, int] | None, layout: Layout
) -> Microbatch:
    """One microbatch of samples that were put together before; of none, padding."""
    if not samples:
        shape = shape or (1, layout.pad_multiple)
        if layout.mode is PackingMode.NONE:
            return padding_rectangle(shape, pad_id=layout.pad_id)
        return padding_row(shape[1], pad_id=layout.pad_id)
    if layout.mode is PackingMode.NONE:
        return build_rectangle(
            samples, pad_multiple=layout.pad_multiple, shape=shape, pad_id=layout.pad_id
        )
    return layout.trainer_row(samples, None if shape is None else shape[1])


def _prepacked(batch: StepBatch) -> list[Row]:
    assert len(batch.micro_batch_indices) == len(batch.micro_batch_lengths) == len(batch.rows)
    rows = []
    for (first, end), width in zip(
        batch.micro_batch_indices, batch.micro_batch_lengths, strict=True
    ):
        row = batch.rows[first]
        assert end == first + 1 and row.tokens.shape[1] == width, "a pack is its own microbatch"
        rows.append(row)
    return rows
