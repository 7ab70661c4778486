"""The order in which conversations are read: a function of the seed and nothing else.

The stream is epoch after epoch, each a permutation of its own, cut into windows of consecutive
positions. Where some conversations come more often than others, an epoch is a permutation of all
their copies. A window is what the loader packs over and what travels between processes. Window
``j`` always holds the same conversations; who loads it (which rank, which worker) changes nothing
about its content. So the rows do not depend on the number of worker processes, every mode of
packing sees the same conversations in the same order, and a position in the stream is two integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Share:
    """Consecutive rows that come equally often.

    In every epoch each of them comes ``per_epoch // rows`` times, and some of them once more:
    others each time, until all have had their turn.

    Attributes:
        rows: how many there are; at least 1.
        per_epoch: positions that they fill together in an epoch.
    """

    rows: int
    per_epoch: int


@dataclass(frozen=True, kw_only=True)
class WindowOrder:
    """Which rows of a data set stand in which window.

    Attributes:
        rows: conversations in the data set; at least 1.
        window_size: positions per window; the last window of a finite stream may be shorter.
        epochs: how often the data set is gone through; None: without end.
        shuffle: a new permutation each epoch; else the order of the files.
        seed: of the permutations.
        shares: how often rows come in an epoch, for all rows in order; empty: each comes once.
    """

    rows: int
    window_size: int
    epochs: int | None
    shuffle: bool
    seed: int
    shares: tuple[Share, ...] = ()

    def __post_init__(self) -> None:
        assert not self.shares or sum(share.rows for share in self.shares) == self.rows

    @property
    def epoch_size(self) -> int:
        """Positions in an epoch."""
        return sum(share.per_epoch for share in self.shares) if self.shares else self.rows

    def has_window(self, window: int) -> bool:
        """Whether the stream is as long as that."""
        end = math.inf if self.epochs is None else self.epochs * self.epoch_size
        return window * self.window_size < end

    def windows(
        self, first: int = 0, stride: int = 1
    ) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Every ``stride``-th window from ``first`` on, as (window, its rows ``[n]``)."""
        window = first
        while True:
            start = window * self.window_size
            end = start + self.window_size
            if self.epochs is not None:
                end = min(end, self.epochs * self.epoch_size)
            if start >= end:
                return
            yield window, self._rows_at(start, end)
            window += stride

    def row_order(self, window: int, rows: int) -> npt.NDArray[np.int64]:
        """The order in which the packed rows of a window are trained on, int64 ``[rows]``.

        Packers open bins for the longest samples first. Trained on in that order, a step would
        see conversations of one length only.
        """
        if not self.shuffle:
            return np.arange(rows, dtype=np.int64)
        # The third number keeps this draw apart from the epochs' permutations.
        return np.random.default_rng((self.seed, window, 1)).permutation(rows)

    def _rows_at(self, start: int, end: int) -> npt.NDArray[np.int64]:
        parts = []
        size = self.epoch_size
        while start < end:
            epoch, offset = divmod(start, size)
            take = min(end - start, size - offset)
            parts.append(self._epoch(epoch)[offset : offset + take])
            start += take
        return np.concatenate(parts)

    def _epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        if not self.shuffle:
            return self._members(epoch)
        # Drawn anew for each window rather than kept: a worker meets few windows of one epoch,
        # and a permutation of a million rows takes some ten milliseconds.
        order = np.random.default_rng((self.seed, epoch, 0)).permutation(self.epoch_size)
        return self._members(epoch)[order] if self.shares else order

    def _members(self, epoch: int) -> npt.NDArray[np.int64]:
        """The rows of an epoch with all their copies, share after share."""
        if not self.shares:
            return np.arange(self.rows, dtype=np.int64)
        parts = []
        first = 0
        for number, share in enumerate(self.shares):
            copies, more = divmod(share.per_epoch, share.rows)
            rows = np.arange(first, first + share.rows, dtype=np.int64)
            parts += [rows] * copies
            if more:
                turn = (epoch * more + np.arange(more)) % share.rows
                parts.append(np.sort(rows[self._turns(number, share.rows)[turn]]))
            first += share.rows
        return np.concatenate(parts)

    def _turns(self, share: int, rows: int) -> npt.NDArray[np.int64]:
        """The order in which rows of a share have their turn to come once more."""
        # Drawn without regard to ``shuffle``: the first half of a file is no sample of it. Four
        # numbers keep this draw apart from the others.
        return np.random.default_rng((self.seed, share, 0, 2)).permutation(rows)
