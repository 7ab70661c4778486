"""Validation: every held-out conversation once, each loss token weighing the same."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass

import torch

from data.accounting import Accounting
from data.errors import DataError
from data.jsonl import Records
from data.packing.microbatches import to_microbatches
from sft.feed import Feed
from sft.settings import LossAverage
from sft.step import StepRunner


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One pass over the validation conversations.

    Attributes:
        loss: mean over loss tokens, the same number however the samples were packed.
        loss_tokens: how many.
        seconds: it took.
        accounting: of the conversations read.
    """

    loss: float
    loss_tokens: int
    seconds: float
    accounting: Accounting


def validate(runner: StepRunner, feed: Feed, records: Records) -> Validation:
    """Run the model over every validation conversation; weights stay as they are.

    Raises:
        DataError: no validation conversation can be used.
    """
    start = time.perf_counter()
    runner = dataclasses.replace(runner, average=LossAverage.TOKEN)
    runner.model.eval()
    sums: list[float] = []
    tokens = 0
    with torch.no_grad(), feed.validation_stream(records) as stream:
        try:
            for batch in feed.step_batches(stream):
                loss = runner.forward(to_microbatches(batch, feed.layout))
                sums += loss.sums
                tokens += loss.denominator
        except DataError as error:
            raise DataError(f"validation: {error}") from error
        accounting = stream.accounting
    runner.model.train()
    return Validation(
        loss=math.fsum(sums) / max(1, tokens),
        loss_tokens=tokens,
        seconds=time.perf_counter() - start,
        accounting=accounting,
    )
