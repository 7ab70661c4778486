"""The order in which conversations are read: a function of the seed and nothing else.

The stream is epoch after epoch, each a permutation of its own, cut into windows of consecutive
positions. A window is what the loader packs over and what travels between processes. Window ``j``
always holds the same conversations; who loads it (which rank, which worker) changes nothing about
its content. So the rows do not depend on the number of worker processes, every mode of packing
sees the same conversations in the same order, and a position in the stream is two integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class WindowOrder:
    """Which rows of a data set stand in which window.

    Attributes:
        rows: conversations in the data set; at least 1.
        window_size: positions per window; the last window of a finite stream may be shorter.
        epochs: how often each conversation comes; None: without end.
        shuffle: a new permutation each epoch; else the order of the file.
        seed: of the permutations.
    """

    rows: int
    window_size: int
    epochs: int | None
    shuffle: bool
    seed: int

    def windows(
        self, first: int = 0, stride: int = 1
    ) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Every ``stride``-th window from ``first`` on, as (window, its rows ``[n]``)."""
        window = first
        while True:
            start = window * self.window_size
            end = start + self.window_size
            if self.epochs is not None:
                end = min(end, self.epochs * self.rows)
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
        while start < end:
            epoch, offset = divmod(start, self.rows)
            take = min(end - start, self.rows - offset)
            parts.append(self._epoch(epoch)[offset : offset + take])
            start += take
        return np.concatenate(parts)

    def _epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(self.rows, dtype=np.int64)
        # Drawn anew for each window rather than kept: a worker meets few windows of one epoch,
        # and a permutation of a million rows takes some ten milliseconds.
        return np.random.default_rng((self.seed, epoch, 0)).permutation(self.rows)
