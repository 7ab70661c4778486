"""The loss of a step: a sum over all its loss tokens, divided once by what they count for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from data.packing.microbatches import Microbatch
from data.thd import Row
from sft.settings import LossAverage


@dataclass(frozen=True, eq=False)
class LossWeights:
    """Which positions of a microbatch count, and for how much.

    Attributes:
        positions: int64 ``[k]``, indices into the flattened ``[b * s]``.
        weights: float32 ``[k]``; None: all 1.
        denominator: what the microbatch adds to the step's divisor: its loss tokens, or its
            conversations that have any.
    """

    positions: Tensor
    weights: Tensor | None
    denominator: int


def loss_weights(microbatch: Microbatch, average: LossAverage) -> LossWeights:
    """Weigh the positions so that how a step was packed cannot matter.

    With ``token`` every loss token of the step weighs 1. With ``sample`` those of one
    conversation weigh 1 together, counted by its own boundaries, not by rows.
    """
    positions = microbatch.loss_mask.flatten().nonzero().flatten()
    if average is LossAverage.TOKEN:
        return LossWeights(positions, None, positions.numel())
    sample = _sample_of(microbatch, positions)
    per_sample = torch.bincount(sample, minlength=len(microbatch.source_ids))
    weights = 1.0 / per_sample[sample].float()
    return LossWeights(positions, weights, int((per_sample > 0).sum()))


def _sample_of(microbatch: Microbatch, positions: Tensor) -> Tensor:
    """Which conversation of the microbatch each position belongs to, int64 ``[k]``."""
    if isinstance(microbatch, Row):
        ends = microbatch.cu_seqlens_padded[1:].to(positions)
        return torch.searchsorted(ends, positions, right=True)
    return positions // microbatch.tokens.shape[1]
