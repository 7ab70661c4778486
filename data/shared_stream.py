"""One stream for all processes: each reads its share of the windows, and all know what comes.

Window ``j`` is read by process ``j % size``. Before their content is needed, the processes tell
each other the lengths of what stands in the next ``size`` windows. So every process goes through
the same :class:`Arrival` objects in the same order and decides alike what a step consists of; an
item itself stays with the process that has read it until it is known who trains it.

Where the stream stands is a :class:`StreamPosition`: numbers that hold for any number of processes
and workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from data.accounting import Accounting, BadLimit
from data.energon import ConversationStream
from data.errors import DataError
from data.exchange import Exchange
from data.intake import Intake, Window
from data.packing.batch import Pack
from data.sample import Sample


@dataclass(frozen=True, slots=True)
class Arrival:
    """What every process knows of a sample or a pack. Its length is that in real tokens.

    Attributes:
        window: that it stands in.
        index: its place among the items of the window.
        last: whether none comes after it in the window.
        owner: the process that has it.
        lengths: tokens of its samples, in order.
        loss_tokens: positions in it that count in the loss.
    """

    window: int
    index: int
    last: bool
    owner: int
    lengths: tuple[int, ...]
    loss_tokens: int

    def __len__(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True, kw_only=True)
class StreamPosition:
    """After which step a stream stands; opened there, it gives the steps that follow.

    Attributes:
        window: of the first item that is still to come, or of the first of a group of steps that
            share their rows (``packing.level_window``) and are not all done.
        index: that item's place in its window.
        real_tokens: of all items before it.
        steps: cut before it.
        steps_taken: that are done of the group of steps that begins there.
        counted: windows that are in the counts below; a step may have looked at some beyond it.
        accounting: of the conversations of these windows, as ``Accounting.to_json`` has it.
        rows: packed rows in them.
        fewest_rows: a lower bound on the rows they need.
        fruitless: conversations in them since the last that could be used.
    """

    window: int = 0
    index: int = 0
    real_tokens: int = 0
    steps: int = 0
    steps_taken: int = 0
    counted: int = 0
    accounting: Mapping[str, Any] = field(default_factory=lambda: Accounting().to_json())
    rows: int = 0
    fewest_rows: int = 0
    fruitless: int = 0

    @property
    def steps_done(self) -> int:
        """Steps that were handed out before this position."""
        return self.steps + self.steps_taken

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> StreamPosition:
        """What :meth:`to_json` gave, as an object again."""
        return cls(**content)

    def past(self, groups: list[list[Arrival]]) -> StreamPosition:
        """The place after these steps, which begin here."""
        last = groups[-1][-1]
        return replace(
            self,
            window=last.window + last.last,
            index=0 if last.last else last.index + 1,
            real_tokens=self.real_tokens + sum(len(item) for group in groups for item in group),
            steps=self.steps + len(groups),
            steps_taken=0,
        )


class SharedStream:
    """The stream of a run, the same on every process; iterate once, and close it.

    Attributes:
        start: where it was opened.
    """

    def __init__(
        self,
        local: ConversationStream,
        exchange: Exchange,
        limit: BadLimit,
        start: StreamPosition | None = None,
    ) -> None:
        """Share what every process reads.

        Args:
            local: this process's share of the windows, from that of ``start`` on.
            exchange: of the processes.
            limit: how much of a pass may be of no use, over all of them.
            start: where to begin; None: at the beginning.
        """
        self.start = start or StreamPosition()
        self._local = local
        self._exchange = exchange
        self._items: dict[tuple[int, int], Any] = {}
        self._counted = self.start.counted
        self._intake = Intake(
            limit,
            accounting=Accounting.from_json(self.start.accounting),
            rows=self.start.rows,
            fewest_rows=self.start.fewest_rows,
            fruitless=self.start.fruitless,
        )

    @property
    def accounting(self) -> Accounting:
        """Of the conversations of every window that was begun, whoever has read it."""
        return self._intake.accounting

    @property
    def rows(self) -> int:
        """Packed rows in these windows."""
        return self._intake.rows

    @property
    def fewest_rows(self) -> int:
        """A lower bound on the rows that these windows need, by any packer."""
        return self._intake.fewest_rows

    def __iter__(self) -> Iterator[Arrival]:
        """What arrives, in the order of the run.

        Raises:
            DataError: on every process alike: what one of them reads cannot be used.
        """
        for window in self._windows():
            if window.refusal:  # also of a window that was counted before the start
                raise DataError(window.refusal)
            if window.number >= self._counted:
                self._intake.take(window)
                self._counted = window.number + 1
            owner, last = window.number % self._exchange.size, len(window.items) - 1
            for index, (lengths, loss_tokens) in enumerate(window.items):
                item = Arrival(window.number, index, index == last, owner, lengths, loss_tokens)
                if (window.number, index) >= (self.start.window, self.start.index):
                    yield item
                elif owner == self._exchange.rank:
                    self.take(item)

    def take(self, arrival: Arrival) -> Any:
        """Hand over an item that this process has read, once."""
        return self._items.pop((arrival.window, arrival.index))

    def marked(self, place: StreamPosition) -> StreamPosition:
        """A place with what has been counted up to now."""
        return replace(
            place,
            counted=self._counted,
            accounting=self.accounting.to_json(),
            rows=self.rows,
            fewest_rows=self.fewest_rows,
            fruitless=self._intake.fruitless,
        )

    def _windows(self) -> Iterator[Window]:
        """All windows in order; every process asks for as many at the same time."""
        own, size = self._own_windows(), self._exchange.size
        first = self.start.window
        while True:
            news = self._exchange.gather(next(own, None))
            for number in range(first, first + size):
                window = news[number % size]
                if window is None:
                    return
                assert window.number == number
                yield window
            first += size

    def _own_windows(self) -> Iterator[Window]:
        """What the others have to know of the windows of this process; their items are kept."""
        size, start = self._exchange.size, self.start.window
        number = start + (self._exchange.rank - start) % size
        try:
            for window in self._local.windows():
                number = window.number
                for index, item in enumerate(window.items):
                    self._items[number, index] = item
                yield replace(window, items=[_measures(item) for item in window.items])
                number += size
        except DataError as error:
            # Raised here, it would leave the other processes waiting.
            yield Window(number, [], refusal=str(error))

    def close(self) -> None:
        """End the worker processes; the stream cannot be used afterwards."""
        self._local.close()
        self._items.clear()

    def __enter__(self) -> SharedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _measures(item: Sample | Pack) -> tuple[tuple[int, ...], int]:
    if isinstance(item, Pack):
        return item.row.lengths, item.row.loss_tokens
    return (len(item),), item.loss_tokens
