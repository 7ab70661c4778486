"""Megatron-Energon as the loader: worker processes, the packing hooks, and accounting.

What is Energon's and what is ours. Energon runs the pipeline (encode -> collect a buffer ->
``select_samples_to_pack`` -> ``pack_selected_samples`` -> batch), its worker processes and their
watchdog. The order of the conversations is ours (:mod:`data.windows`), because Energon's own
depends on the number of workers, and a buffer of ours is always one window of that order.

Energon leaves out, without a word, every sample that ``select_samples_to_pack`` does not return
or that raises. So nothing is ever skipped here: a conversation that cannot be used travels on as
:class:`~data.chat.Dropped` in a group of its own, and is counted where it arrives. An exception in
a hook is therefore always a fault of ours, and ends the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_loader, stateless
from megatron.energon.flavors.base_dataset import SavableDataset
from megatron.energon.metadataset.loader_interface import LoadedDataset

from data.accounting import Accounting
from data.chat import ConversationEncoder, Dropped
from data.errors import DataError
from data.intake import Window
from data.jsonl import Records
from data.packing.batch import Pack
from data.packing.microbatches import Layout
from data.sample import Sample
from data.windows import WindowOrder


@dataclass(slots=True)
class _Record:
    """A raw conversation on its way into the encoder."""

    line: bytes
    source_id: str
    window: int
    window_size: int


@dataclass(slots=True)
class _Outcome:
    """What the encoder made of a record; ``group_count`` is set when its window is packed."""

    outcome: Sample | Dropped
    window: int
    group_count: int
    refusal: str | None


@dataclass(slots=True)
class _Group:
    """Part of a window: one pack, or all its dropped conversations, or one sample."""

    item: Sample | Pack | None
    accounting: Accounting
    window: int
    group_count: int
    refusal: str | None


class _RecordDataset(SavableDataset[_Record]):  # type: ignore[misc]
    """Reads conversations in window order from ``first`` on, each worker its share of them."""

    def __init__(
        self, records: Records, order: WindowOrder, first: int, worker_config: WorkerConfig
    ) -> None:
        super().__init__(worker_config=worker_config)
        self.records = records
        self.order = order
        self.first = first

    def __iter__(self) -> Iterator[_Record]:
        config = self.worker_config
        workers = max(1, config.num_workers)
        # Window j goes to rank j % ranks, and there to the next worker in turn: torch collects
        # from the workers in turn, so the windows of a rank arrive in order.
        first = self.first + config.world_size * config.rank_worker_id()
        for window, rows in self.order.windows(first, stride=config.world_size * workers):
            for row in rows.tolist():
                yield _Record(
                    self.records.read(row), self.records.source_id(row), window, rows.size
                )

    def len_worker(self, worker_idx: int | None = None) -> int:
        """Conversations; what this loader's length is made of, which nobody asks for."""
        return len(self.records)

    def worker_has_samples(self) -> bool:
        """Whether there is anything to read."""
        return len(self.records) > 0

    def reset_state_own(self) -> None:
        """Nothing to reset: the position is the trainer's, not the reader's."""

    def config(self) -> dict[str, Any]:
        """Identify the data and its order."""
        return {"type": type(self).__qualname__, "order": self.order}


class _Factory:
    """Hands an existing dataset to Energon's pipeline builder."""

    __sample_type__ = _Record
    subflavors: dict[str, Any] = {}  # noqa: RUF012 (Energon reads it from the instance)

    def __init__(self, dataset: _RecordDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return self.dataset.len_worker()

    def build(self, worker_rotation_offset: int = 0) -> _RecordDataset:
        """The dataset; Energon's rotation of workers has no place in our order."""
        return self.dataset


class _ConversationEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):  # type: ignore[misc]
    """The hooks. With ``layout`` the loader packs; without, it hands over samples."""

    def __init__(
        self, encode: ConversationEncoder, order: WindowOrder, layout: Layout | None
    ) -> None:
        super().__init__()
        self.encode = encode
        self.order = order
        self.layout = layout

    @stateless  # type: ignore[untyped-decorator]
    def encode_sample(self, sample: _Record) -> _Outcome | _Group:
        refusal = None
        try:
            outcome = self.encode(sample.line, sample.source_id)
        except DataError as error:
            # Raised here, it would reach the user inside a worker's stack trace.
            outcome, refusal = Dropped(sample.source_id, "refused"), str(error)
        if self.layout is not None:
            return _Outcome(outcome, sample.window, 0, refusal)
        accounting = Accounting()
        accounting.add(outcome)
        item = outcome if isinstance(outcome, Sample) else None
        return _Group(item, accounting, sample.window, sample.window_size, refusal)

    def select_samples_to_pack(self, samples: list[_Outcome]) -> list[list[_Outcome]]:
        assert self.layout is not None
        assert len({s.window for s in samples}) == 1, "a buffer is one window"
        kept = [s for s in samples if isinstance(s.outcome, Sample)]
        bins = self.layout.bins([len(cast(Sample, s.outcome)) for s in kept]) if kept else []
        row_order = self.order.row_order(samples[0].window, len(bins))
        groups = [[kept[i] for i in bins[row]] for row in row_order]
        dropped = [s for s in samples if isinstance(s.outcome, Dropped)]
        if dropped:
            groups.append(dropped)
        assert sum(map(len, groups)) == len(samples), "a packer left a sample out"
        for outcome in samples:
            outcome.group_count = len(groups)
        return groups

    @stateless  # type: ignore[untyped-decorator]
    def pack_selected_samples(self, samples: list[_Outcome]) -> _Group:
        assert self.layout is not None
        accounting = Accounting()
        for s in samples:
            accounting.add(s.outcome)
        kept = [s.outcome for s in samples if isinstance(s.outcome, Sample)]
        pack = Pack.of(self.layout.loader_row(kept)) if kept else None
        refusal = next((s.refusal for s in samples if s.refusal), None)
        return _Group(pack, accounting, samples[0].window, samples[0].group_count, refusal)

    def batch_group_criterion(self, sample: _Group) -> tuple[int, int]:
        return sample.window, sample.group_count

    def batch(self, samples: list[_Group]) -> Window:
        items: list[Any] = []
        window = Window(samples[0].window, items)
        for group in samples:
            if group.item is not None:
                items.append(group.item)
            window.accounting.merge(group.accounting)
            window.refusal = window.refusal or group.refusal
        if self.layout is not None:
            lengths = [n for pack in items for n in pack.row.lengths]
            window.fewest_rows = self.layout.fewest_rows(lengths)
        return window


class ConversationStream:
    """One process's windows of samples, or of packs where the loader packs, with their accounting.

    Go through :meth:`windows` once; close it to end its worker processes.
    """

    def __init__(
        self,
        records: Records,
        encode: ConversationEncoder,
        order: WindowOrder,
        *,
        pack_with: Layout | None = None,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        first_window: int = 0,
    ) -> None:
        """Open the stream.

        Args:
            records: the conversations.
            encode: from raw line to sample.
            order: of the conversations.
            pack_with: the loader packs each window with this layout; None: it hands over samples.
            num_workers: processes; 0 loads in this one.
            rank: of this process among those that share the windows.
            world_size: how many share them; window ``j`` is read by process ``j % world_size``.
            first_window: those before it are not read.
        """
        self._loader = None
        self._windows: Iterator[Window] = iter(())
        first = first_window + (rank - first_window) % world_size
        if not order.has_window(first):
            return
        config = WorkerConfig(
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
            global_error_handler=_reraise,
        )
        reader = _RecordDataset(records, order, first, config)
        dataset = _ConversationEncoder(encode, order, pack_with).build_train_datasets(
            datasets=[LoadedDataset(dataset=_Factory(reader))],
            worker_config=config,
            batch_size=None,
            packing_buffer_size=None if pack_with is None else order.window_size,
            repeat=False,
        )
        # The first window has to be tokenised whole before anything arrives.
        self._loader = get_loader(dataset, watchdog_timeout_seconds=600)
        self._windows = iter(self._loader)

    def windows(self) -> Iterator[Window]:
        """This process's windows as they arrive; nothing is counted or refused.

        Raises:
            DataError: the data cannot be read any more.
        """
        try:
            yield from self._windows
        except DataError as error:
            # From a worker it comes with the worker's stack trace as its text.
            raise DataError(str(error).rpartition("data.errors.DataError: ")[2].strip()) from error

    def close(self) -> None:
        """End the worker processes; the stream cannot be used afterwards."""
        workers = getattr(getattr(self._loader, "_iterator", None), "_workers", ())
        # Left to itself torch waits five seconds for each of Energon's workers. They hold nothing
        # that needs saving.
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join(timeout=5)
        self._windows = iter(())
        self._loader = None


def _reraise(error: Exception, _sample: Any, _sources: Any = None) -> None:
    raise error
