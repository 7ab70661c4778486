"""What one optimizer step gets, before it becomes microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from data.sample import Sample
from data.thd import Row


@dataclass(frozen=True, eq=False)
class Pack:
    """One finished row, as the loader hands it over.

    Attributes:
        row: the tensors, ``[1, capacity]``.
        micro_batch_indices: which packs make up each microbatch, as (first, end) pairs; one
            pack, one microbatch. That they are there tells the trainer not to pack again.
        micro_batch_lengths: the width of each microbatch, in slot tokens.
        sample_mask: one entry per pack, not per conversation: whether it holds a loss token.
    """

    row: Row
    micro_batch_indices: tuple[tuple[int, int], ...] = ((0, 1),)
    micro_batch_lengths: tuple[int, ...] = ()
    sample_mask: tuple[float, ...] = ()

    @classmethod
    def of(cls, row: Row) -> Pack:
        """Wrap a row that is to be a microbatch of its own."""
        return cls(
            row=row,
            micro_batch_lengths=(row.tokens.shape[1],),
            sample_mask=(float(row.loss_tokens > 0),),
        )


@dataclass(frozen=True, eq=False)
class StepBatch:
    """One process's data of a step: samples still to be laid out, or rows the loader has packed.

    ``rows`` non-empty means that the boundaries are already decided.

    Attributes:
        bins: which samples make up each microbatch, by index; of none: padding. None: that is
            still to be decided, over the samples.
        shape: lines and width that every microbatch is to have; None: each as it needs.
    """

    samples: tuple[Sample, ...] = ()
    rows: tuple[Row, ...] = ()
    micro_batch_indices: tuple[tuple[int, int], ...] = ()
    micro_batch_lengths: tuple[int, ...] = ()
    sample_mask: tuple[float, ...] = field(default=())
    bins: tuple[tuple[int, ...], ...] | None = None
    shape: tuple[int, int] | None = None

    @classmethod
    def from_packs(cls, packs: Sequence[Pack]) -> StepBatch:
        """Join packs; their microbatches follow one another."""
        indices: list[tuple[int, int]] = []
        for offset, pack in enumerate(packs):
            indices += [(offset + a, offset + b) for a, b in pack.micro_batch_indices]
        return cls(
            rows=tuple(pack.row for pack in packs),
            micro_batch_indices=tuple(indices),
            micro_batch_lengths=tuple(n for pack in packs for n in pack.micro_batch_lengths),
            sample_mask=tuple(m for pack in packs for m in pack.sample_mask),
        )
