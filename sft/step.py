"""One forward and backward over a step's microbatches, through Megatron-Core's schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from data.packing.microbatches import Microbatch
from data.thd import Row
from models.losses import packed_seq_params, token_losses
from sft.errors import TrainingError
from sft.loss import LossWeights, loss_weights
from sft.settings import LossAverage


@dataclass(frozen=True, kw_only=True)
class StepRunner:
    """How microbatches meet the model.

    Attributes:
        model: wrapped for data parallelism.
        device: where it is.
        average: of the loss.
        real_boundaries: hand the attention kernel the real boundaries beside the padded ones.
    """

    model: Any
    device: torch.device
    average: LossAverage
    real_boundaries: bool

    def forward_backward(self, microbatches: Sequence[Microbatch]) -> StepLoss:
        """Accumulate the step's gradients, divided by its loss tokens; returns its loss."""
        return self._run(microbatches, forward_only=False)

    def forward(self, microbatches: Sequence[Microbatch]) -> StepLoss:
        """Only the loss; no gradient is kept."""
        return self._run(microbatches, forward_only=True)

    def _run(self, microbatches: Sequence[Microbatch], *, forward_only: bool) -> StepLoss:
        reports: list[dict[str, Any]] = get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=iter(microbatches),
            model=[self.model],
            num_microbatches=len(microbatches),
            seq_length=max(m.tokens.shape[1] for m in microbatches),
            micro_batch_size=1,
            forward_only=forward_only,
        )
        return StepLoss(
            sums=tuple(float(r["loss_sum"]) for r in reports),
            denominators=tuple(int(r["denominator"]) for r in reports),
        )

    def _forward_step(self, microbatches: Iterator[Microbatch], model: Any) -> tuple[Tensor, Any]:
        microbatch = next(microbatches)
        weights = loss_weights(microbatch, self.average)
        losses = token_losses(
            model,
            tokens=self._moved(microbatch.tokens),
            labels=self._moved(microbatch.labels),
            position_ids=self._moved(microbatch.position_ids),
            loss_positions=self._moved(weights.positions),
            packing=self._boundaries(microbatch),
        )
        return losses, partial(_weighted_sum, weights)

    def _boundaries(self, microbatch: Microbatch) -> Any:
        if not isinstance(microbatch, Row):
            return None
        return packed_seq_params(
            self._moved(microbatch.cu_seqlens),
            self._moved(microbatch.cu_seqlens_padded),
            microbatch.max_seqlen,
            real_boundaries=self.real_boundaries,
        )

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)


def _weighted_sum(weights: LossWeights, losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
    # The shape that Megatron-Core's per-token mode takes: the sum, what it is to be divided by,
    # and a report. The sum over no positions is 0 and still connected to every parameter.
    weighted = losses if weights.weights is None else losses * weights.weights.to(losses)
    loss_sum = weighted.sum()
    denominator = torch.tensor(weights.denominator, dtype=torch.int, device=losses.device)
    return (
        loss_sum,
        denominator,
        {"loss_sum": loss_sum.detach(), "denominator": weights.denominator},
    )


@dataclass(frozen=True)
class StepLoss:
    """The loss of a step, by microbatch.

    Attributes:
        sums: weighted sum of the losses of each microbatch.
        denominators: what each adds to the divisor.
    """

    sums: tuple[float, ...]
    denominators: tuple[int, ...]

    @property
    def denominator(self) -> int:
        """What the step's sum is divided by."""
        return sum(self.denominators)

    @property
    def value(self) -> float:
        """The loss that was differentiated; 0 where nothing counts."""
        return math.fsum(self.sums) / max(1, self.denominator)


def refuse_non_finite(
    loss: StepLoss, microbatches: Sequence[Microbatch], step: int, what: str = "loss"
) -> None:
    """Stop where a microbatch's loss is NaN or infinite, before the weights are touched.

    Raises:
        TrainingError: naming the step and the conversations of the microbatch.
    """
    for value, microbatch in zip(loss.sums, microbatches, strict=True):
        if not math.isfinite(value):
            ids = microbatch.source_ids
            more = f" and {len(ids) - 8} more" if len(ids) > 8 else ""
            raise TrainingError(
                f"step {step}: the {what} is {value}, first in the microbatch with "
                f"{', '.join(ids[:8])}{more}. Look at these conversations, or lower optimizer.lr"
            )
