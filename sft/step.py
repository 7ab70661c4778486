"""One forward and backward over a step's microbatches, through Megatron-Core's schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from data.packing.microbatches import Microbatch
from data.thd import Row, silent
from models.losses import packed_seq_params, token_losses
from sft.collectives import gathered, summed_over_shares
from sft.errors import TrainingError, said_by_first
from sft.loss import LossWeights, loss_weights
from sft.settings import LossAverage


@dataclass(frozen=True, kw_only=True)
class StepRunner:
    """How microbatches meet the model.

    Attributes:
        chunks: the model, wrapped for data parallelism; several for virtual stages of a pipeline.
        device: where it is.
        average: of the loss.
        real_boundaries: hand the attention kernel the real boundaries beside the padded ones.
    """

    chunks: Sequence[Any]
    device: torch.device
    average: LossAverage
    real_boundaries: bool

    def forward_backward(self, microbatches: Sequence[Microbatch]) -> StepLoss:
        """Accumulate the step's gradients, divided by its loss tokens; returns its loss.

        Every rank calls this, with as many microbatches; in a pipeline they are all of one shape.
        """
        return self._run(microbatches, forward_only=False)

    def forward(self, microbatches: Sequence[Microbatch]) -> StepLoss:
        """Only the loss; no gradient is kept."""
        return self._run(microbatches, forward_only=True)

    def _run(self, microbatches: Sequence[Microbatch], *, forward_only: bool) -> StepLoss:
        given = self._enough(microbatches)
        iterators = [iter(given) for _ in self.chunks]
        reports: list[dict[str, Any]] = get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=list(self.chunks),
            num_microbatches=len(given),
            seq_length=max(m.tokens.shape[1] for m in given),
            micro_batch_size=given[0].tokens.shape[0],
            forward_only=forward_only,
        )
        sums = tuple(float(r["loss_sum"]) for r in reports)[: len(microbatches)]
        total, denominator = summed_over_shares(
            (math.fsum(sums), float(sum(r["denominator"] for r in reports)))
        )
        return StepLoss(sums=sums, total=total, denominator=round(denominator))

    def _enough(self, microbatches: Sequence[Microbatch]) -> list[Microbatch]:
        """Interleaved stages take turns by groups of as many microbatches as there are ranks."""
        missing = 0
        if len(self.chunks) > 1:
            missing = -len(microbatches) % parallel_state.get_pipeline_model_parallel_world_size()
        return [*microbatches, *[silent(microbatches[0])] * missing]

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
        # Each row is on all context-parallel ranks, and counts once.
        counts = parallel_state.get_context_parallel_rank() == 0
        return losses, partial(_weighted_sum, weights, weights.denominator if counts else 0)

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


def _weighted_sum(
    weights: LossWeights, count: int, losses: Tensor
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    # The shape that Megatron-Core's per-token mode takes: the sum, what it is to be divided by,
    # and a report. The sum over no positions is 0 and still connected to every parameter.
    weighted = losses if weights.weights is None else losses * weights.weights.to(losses)
    loss_sum = weighted.sum()
    denominator = torch.tensor(count, dtype=torch.int, device=losses.device)
    return loss_sum, denominator, {"loss_sum": loss_sum.detach(), "denominator": count}


@dataclass(frozen=True)
class StepLoss:
    """The loss of a step, the same on every rank.

    Attributes:
        total: weighted sum of the losses of all microbatches of all ranks.
        denominator: what it is divided by.
        sums: of each microbatch of this rank, what this rank has computed; empty on a stage of a
            pipeline that is not its last.
    """

    total: float
    denominator: int
    sums: tuple[float, ...]

    @property
    def value(self) -> float:
        """The loss that was differentiated; 0 where nothing counts."""
        return self.total / max(1, self.denominator)


def refuse_non_finite(
    loss: StepLoss, microbatches: Sequence[Microbatch], step: int, what: str = "loss"
) -> None:
    """Stop where a microbatch's loss is NaN or infinite, before the weights are touched.

    Every rank calls this, and all stop together.

    Raises:
        TrainingError: naming the step and the conversations of the microbatch.
    """
    if math.isfinite(loss.total):
        return
    culprit = None
    for value, microbatch in zip(loss.sums, microbatches, strict=False):
        if not math.isfinite(value):
            ids = microbatch.source_ids
            more = f" and {len(ids) - 8} more" if len(ids) > 8 else ""
            culprit = f"{value}, first in the microbatch with {', '.join(ids[:8])}{more}"
            break
    found = next(filter(None, gathered(culprit)), f"{loss.total}")
    error = TrainingError(
        f"step {step}: the {what} is {found}. Look at these conversations, or lower optimizer.lr"
    )
    raise said_by_first(error, dist.get_rank())
