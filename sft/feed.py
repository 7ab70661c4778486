"""From prepared data to the batches of optimizer steps, for training and for validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from data.accounting import BadLimit
from data.chat import ConversationEncoder
from data.energon import ConversationStream
from data.exchange import Alone, Exchange
from data.jsonl import Records
from data.packing.batch import Pack, StepBatch
from data.packing.deal import Deal, alike_steps, deal
from data.packing.microbatches import Layout
from data.packing.settings import PackingMode
from data.packing.steps import by_real_tokens, even_steps, in_groups_of, up_to_tokens
from data.shared_stream import Arrival, SharedStream, StreamPosition
from data.thd import padding_row
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


@dataclass(frozen=True)
class Step:
    """What an optimizer step consists of, as every process knows it.

    Attributes:
        items: over all processes.
        end: where the stream stands after it.
    """

    items: list[Arrival]
    end: StreamPosition


@dataclass(frozen=True, kw_only=True)
class Feed:
    """How this run reads, packs and groups conversations.

    Attributes:
        config: the run's.
        derived: what follows from it.
        layout: shared by the loader and the trainer.
        encode: from raw line to sample.
        exchange: of all processes of the run.
        replicas: which replica of the model each of them trains.
    """

    config: RunConfig
    derived: Derived
    layout: Layout
    encode: ConversationEncoder
    exchange: Exchange = field(default_factory=Alone)
    replicas: tuple[int, ...] = (0,)

    @classmethod
    def of(cls, config: RunConfig, derived: Derived, exchange: Exchange | None = None) -> Feed:
        """The feed that the settings describe.

        Args:
            config: the run's.
            derived: what follows from it.
            exchange: of all its processes; None: there is one.
        """
        exchange = exchange or Alone()
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
                one_shape=config.parallel.pp > 1,
            ),
            encode=build_encoder(config, derived),
            exchange=exchange,
            replicas=config.parallel.replicas(exchange.size),
        )

    @property
    def loader_packs(self) -> bool:
        """Whether batches arrive as finished rows."""
        return self.config.packing.mode is PackingMode.LOADER

    def training_stream(
        self, records: Records, start: StreamPosition | None = None
    ) -> SharedStream:
        """The training conversations, in the run's order.

        Args:
            records: all of them.
            start: where to go on; None: at the beginning.
        """
        order = training_order(self.config, len(records), self.config.train.epochs, records.shares)
        return self._stream(records, order, self._workers, start)

    def validation_stream(self, records: Records) -> SharedStream:
        """Every validation conversation once, in the order of the file."""
        order = WindowOrder(
            rows=len(records),
            window_size=window_size(self.config.packing, len(records)),
            epochs=1,
            shuffle=False,
            seed=0,
        )
        return self._stream(records, order, num_workers=0)

    def steps(self, stream: SharedStream, plan: StepPlan | None = None) -> Iterator[Step]:
        """Cut a stream into optimizer steps; every process cuts alike.

        Args:
            stream: of samples, or of the loader's packs.
            plan: that the stream was counted for; None: groups as large as ``train`` says.
        """
        per_step = plan.real_tokens if plan is not None else self._real_tokens
        place = stream.start
        groups = self._grouping(per_step, place.real_tokens)(stream)
        # Steps that share their rows are cut together, and those that were done are left out.
        done = place.steps_taken
        for chunk in in_groups_of(groups, self.config.packing.level_window or 1):
            after = place.past(chunk)
            steps = self._levelled(chunk, place.steps)
            for arrival in (item for items in steps[:done] for item in items):
                if arrival.owner == self.exchange.rank:
                    stream.take(arrival)  # it was trained on before
            for number, items in enumerate(steps[done:], start=done + 1):
                end = replace(place, steps_taken=number) if number < len(steps) else after
                yield Step(items, stream.marked(end))
            place, done = after, 0

    def deal(self, step: Step) -> Deal:
        """Which replica trains what of a step."""
        return deal(step.items, self.layout, max(self.replicas) + 1)

    def batch(self, stream: SharedStream, step: Step, dealt: Deal) -> StepBatch:
        """Let the items travel to those who train them; every process calls this.

        Returns:
            What this process trains.
        """
        replica_of = {i: r for r, ps in enumerate(dealt.replicas) for p in ps for i in p.items}
        mine: list[dict[int, Any]] = [{} for _ in dealt.replicas]
        for index, arrival in enumerate(step.items):
            if arrival.owner == self.exchange.rank:
                mine[replica_of[index]][index] = stream.take(arrival)
        received = self.exchange.deliver([mine[replica] for replica in self.replicas])
        items = {index: item for parcel in received for index, item in parcel.items()}
        return self._step_batch(dealt, items)

    def _step_batch(self, dealt: Deal, items: dict[int, Any]) -> StepBatch:
        portions = dealt.replicas[self.replicas[self.exchange.rank]]
        if self.loader_packs:
            padding = self.layout.capacity, self.layout.pad_id
            packs = [
                items[p.items[0]]
                if p.items
                else Pack.of(padding_row(padding[0], pad_id=padding[1]))
                for p in portions
            ]
            return StepBatch.from_packs(packs)
        place = {index: i for i, index in enumerate(i for p in portions for i in p.items)}
        return StepBatch(
            samples=tuple(items[index] for index in place),
            bins=tuple(tuple(place[index] for index in p.items) for p in portions),
            shape=dealt.shape,
        )

    def _levelled(self, groups: list[list[Arrival]], first_step: int) -> list[list[Arrival]]:
        if len(groups) == 1:
            return groups
        items = [item for group in groups for item in group]
        costs = [sum(n * n for n in item.lengths) for item in items]
        sizes = [len(group) for group in groups]
        shared = alike_steps(costs, sizes, seed=self.config.seed, first_step=first_step)
        return [[items[i] for i in step] for step in shared]

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
        with self._stream(records, order, self._workers, packs=False) as stream:
            for arrival in stream:
                if arrival.owner == self.exchange.rank:
                    lengths[row_of[stream.take(arrival).source_id]] = len(arrival)
        return sum(self.exchange.gather(lengths), start=np.zeros_like(lengths))

    def _stream(
        self,
        records: Records,
        order: WindowOrder,
        num_workers: int,
        start: StreamPosition | None = None,
        *,
        packs: bool = True,
    ) -> SharedStream:
        limit = self.config.data.max_bad_fraction
        own = ConversationStream(
            records,
            self.encode,
            order,
            pack_with=self.layout if packs and self.loader_packs else None,
            num_workers=num_workers,
            rank=self.exchange.rank,
            world_size=self.exchange.size,
            first_window=start.window if start is not None else 0,
        )
        return SharedStream(own, self.exchange, BadLimit(limit, order.epoch_size), start)

    @property
    def _workers(self) -> int:
        return self.config.data.num_workers

    def _grouping(
        self, per_step: Fraction | None, before: int = 0
    ) -> Callable[[Iterable[Any]], Iterator[list[Any]]]:
        """How a stream is cut.

        Args:
            per_step: real tokens of a step; None: ``train`` counts something else.
            before: real tokens of what came before the stream begins.
        """
        train = self.config.train
        if per_step is not None:
            return lambda items: by_real_tokens(items, len, per_step, before)
        if self.loader_packs:
            return lambda items: in_groups_of(items, self.derived.packs_per_step)
        if train.global_batch_samples is not None:
            samples = train.global_batch_samples
            return lambda items: in_groups_of(items, samples)
        budget = train.global_batch_tokens
        assert budget is not None
        return lambda items: up_to_tokens(items, budget, self.layout.pad_multiple)
