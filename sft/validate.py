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
from sft.evaluation import evaluation_packing
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


def evaluation_feed(feed: Feed) -> Feed:
    """The feed of validation: reads as training's, and packs as ``eval`` says."""
    packing = evaluation_packing(feed.config)
    size = feed.config.eval.micro_batch_size or feed.derived.micro_batch_size
    return dataclasses.replace(
        feed,
        config=dataclasses.replace(feed.config, packing=packing),
        derived=dataclasses.replace(
            feed.derived,
            micro_batch_size=size,
            # Training may count its steps in what is no pack; then validation goes one by one.
            packs_per_step=feed.derived.packs_per_step or 1,
        ),
        layout=dataclasses.replace(feed.layout, mode=packing.mode, micro_batch_size=size),
    )


def validate(runner: StepRunner, feed: Feed, records: Records) -> Validation:
    """Run the model over every validation conversation; weights stay as they are.

    Args:
        runner: of training; here every loss token weighs the same.
        feed: of training; here it packs as ``eval`` says.
        records: the conversations.

    Raises:
        DataError: no validation conversation can be used.
    """
    start = time.perf_counter()
    feed = evaluation_feed(feed)
    runner = dataclasses.replace(
        runner,
        average=LossAverage.TOKEN,
        real_boundaries=feed.config.packing.real_boundaries,
    )
    for chunk in runner.chunks:
        chunk.eval()
    sums: list[float] = []
    tokens = 0
    with torch.no_grad(), feed.validation_stream(records) as stream:
        try:
            for step in feed.steps(stream):
                batch = feed.batch(stream, step, feed.deal(step))
                loss = runner.forward(to_microbatches(batch, feed.layout))
                sums.append(loss.total)
                tokens += loss.denominator
        except DataError as error:
            raise DataError(f"validation: {error}") from error
        accounting = stream.accounting
    for chunk in runner.chunks:
        chunk.train()
    return Validation(
        loss=math.fsum(sums) / max(1, tokens),
        loss_tokens=tokens,
        seconds=time.perf_counter() - start,
        accounting=accounting,
    )
