"""The items of a stream one after the other, as a process that is alone takes them in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from data.accounting import Accounting, BadLimit
from data.chat import ConversationEncoder
from data.energon import ConversationStream
from data.intake import Intake
from data.jsonl import Records
from data.windows import WindowOrder


class ItemStream:
    """Samples or packs; leave its ``with`` block to end its worker processes."""

    def __init__(
        self,
        records: Records,
        encode: ConversationEncoder,
        order: WindowOrder,
        *,
        max_bad_fraction: float | None = None,
        **how: Any,
    ) -> None:
        self._intake = Intake(BadLimit(max_bad_fraction, order.epoch_size))
        self._stream = ConversationStream(records, encode, order, **how)

    def __iter__(self) -> Iterator[Any]:
        for window in self._stream.windows():
            self._intake.take(window)
            yield from window.items

    @property
    def accounting(self) -> Accounting:
        return self._intake.accounting

    @property
    def rows(self) -> int:
        return self._intake.rows

    @property
    def fewest_rows(self) -> int:
        return self._intake.fewest_rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
