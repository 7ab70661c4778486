"""From prepared data to the batches of optimizer steps, for training and for validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from data.chat import ConversationEncoder
from data.energon import ConversationStream
from data.jsonl import Records
from data.packing.batch import Pack, StepBatch
from data.packing.microbatches import Layout
from data.packing.settings import PackingMode
from data.packing.steps import by_real_tokens, even_steps, in_groups_of, up_to_tokens
from data.windows import WindowOrder
from sft.checks import Derived
from sft.config import RunConfig
from sft.encoder import build_encoder
from sft.order import (
    SAMPLES_PER_WINDOW,
    epoch_rows,
    epoch_windows,
    training_order,
    window_size,
)


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Into how many optimizer steps training is cut, and how large they are.

    Attributes:
        steps: how many.
        real_tokens: of a step, on average; None where ``train`` counts something else.
    """

    steps: int
    real_tokens: Fraction | None


@dataclass(frozen=True, kw_only=True)
class Feed:
    """How this run reads, packs and groups conversations.

    Attributes:
        config: the run's.
        derived: what follows from it.
        layout: shared by the loader and the trainer.
        encode: from raw line to sample.
    """

    config: RunConfig
    derived: Derived
    layout: Layout
    encode: ConversationEncoder

    @classmethod
    def of(cls, config: RunConfig, derived: Derived) -> Feed:
        """The feed that the settings describe."""
        capacity = config.packing.capacity
        return cls(
            config=config,
            derived=derived,
            layout=Layout(
                mode=config.packing.mode,
                packer=config.packer,
                capacity=capacity,
                pad_multiple=derived.pad_multiple,
                pad_id=derived.tokenizer.pad_id,
                micro_batch_size=derived.micro_batch_size,
            ),
            encode=build_encoder(config, derived),
        )

    @property
    def loader_packs(self) -> bool:
        """Whether batches arrive as finished rows."""
        return self.config.packing.mode is PackingMode.LOADER

    def training_stream(self, records: Records) -> ConversationStream[Any]:
        """The training conversations, in the run's order."""
        order = training_order(self.config, len(records), self.config.train.epochs, records.shares)
        return self._stream(records, order, self._workers)

    def validation_stream(self, records: Records) -> ConversationStream[Any]:
        """Every validation conversation once, in the order of the file."""
        order = WindowOrder(
            rows=len(records),
            window_size=window_size(self.config.packing, len(records)),
            epochs=1,
            shuffle=False,
            seed=0,
        )
        return self._stream(records, order, num_workers=0)

    def step_batches(
        self, stream: Iterable[Any], plan: StepPlan | None = None
    ) -> Iterator[StepBatch]:
        """Group what a stream yields into the batches of optimizer steps.

        Args:
            stream: of samples, or of the loader's packs.
            plan: that the stream was counted for; None: groups as large as ``train`` says.
        """
        per_step = plan.real_tokens if plan is not None else self._real_tokens
        for group in self._grouping(per_step)(stream):
            if self.loader_packs:
                yield StepBatch.from_packs(group)
            else:
                yield StepBatch(samples=tuple(group))

    def plan(self, records: Records) -> StepPlan:
        """How many steps ``train.steps`` or ``train.epochs`` makes, and how large they are.

        For epochs every conversation is tokenised once for its length. Real tokens are then shared
        out evenly: each step has ``train.global_batch_real_tokens`` or a little more, and no short
        one is left at the end.

        Raises:
            DataError: no conversation can be used.
        """
        train = self.config.train
        if train.steps is not None:
            return StepPlan(steps=train.steps, real_tokens=self._real_tokens)
        assert train.epochs is not None
        lengths = self._lengths(records)
        order = training_order(self.config, len(records), train.epochs, records.shares)
        if train.global_batch_real_tokens is not None:
            total = int(lengths[epoch_rows(order)].sum())
            steps, per_step = even_steps(total, train.global_batch_real_tokens)
            return StepPlan(steps=steps, real_tokens=per_step)
        return StepPlan(steps=self._count_steps(lengths, order), real_tokens=None)

    @property
    def _real_tokens(self) -> Fraction | None:
        tokens = self.config.train.global_batch_real_tokens
        return None if tokens is None else Fraction(tokens)

    def _count_steps(self, lengths: npt.NDArray[np.int64], order: WindowOrder) -> int:
        """The run's own windows, packer and grouping, gone through on lengths alone."""
        windows = (lengths[rows] for _, rows in epoch_windows(order))
        kept = (window[window > 0] for window in windows)
        items: Iterator[Any]
        if self.loader_packs:
            items = (b for window in kept if window.size for b in self.layout.bins(window.tolist()))
        else:
            items = (range(n) for window in kept for n in window.tolist())
        return sum(1 for _ in self._grouping(None)(items))

    def _lengths(self, records: Records) -> npt.NDArray[np.int64]:
        """Tokens of each conversation, int64 ``[n]``; 0 where it is dropped."""
        row_of = {records.source_id(i): i for i in range(len(records))}
        order = WindowOrder(
            rows=len(records), window_size=SAMPLES_PER_WINDOW, epochs=1, shuffle=False, seed=0
        )
        lengths = np.zeros(len(records), dtype=np.int64)
        with ConversationStream[Any](
            records,
            self.encode,
            order,
            max_bad_fraction=self.config.data.max_bad_fraction,
            num_workers=self._workers,
        ) as samples:
            for sample in samples:
                lengths[row_of[sample.source_id]] = len(sample)
        return lengths

    def _stream(
        self, records: Records, order: WindowOrder, num_workers: int
    ) -> ConversationStream[Any]:
        return ConversationStream(
            records,
            self.encode,
            order,
            pack_with=self.layout if self.loader_packs else None,
            max_bad_fraction=self.config.data.max_bad_fraction,
            num_workers=num_workers,
        )

    @property
    def _workers(self) -> int:
        return self.config.data.num_workers

    def _grouping(
        self, per_step: Fraction | None
    ) -> Callable[[Iterable[Any]], Iterator[list[Any]]]:
        train = self.config.train
        if per_step is not None:
            tokens_of = _pack_tokens if self.loader_packs else len
            return lambda items: by_real_tokens(items, tokens_of, per_step)
        if self.loader_packs:
            return lambda items: in_groups_of(items, self.derived.packs_per_step)
        if train.global_batch_samples is not None:
            samples = train.global_batch_samples
            return lambda items: in_groups_of(items, samples)
        budget = train.global_batch_tokens
        assert budget is not None
        return lambda items: up_to_tokens(items, budget, self.layout.pad_multiple)


def _pack_tokens(pack: Pack) -> int:
    return pack.row.real_tokens
