"""In which order, and in which windows, a run reads its training conversations. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from data.packing.settings import PackingMode, PackingSettings
from data.windows import Share, WindowOrder
from sft.config import RunConfig

SAMPLES_PER_WINDOW = 256


def training_order(
    config: RunConfig, rows: int, epochs: int | None, shares: tuple[Share, ...] = ()
) -> WindowOrder:
    """The order of the training conversations.

    Args:
        config: of the run.
        rows: how many there are.
        epochs: how often they are gone through; None: without end.
        shares: how often they come in an epoch, as ``Records.shares`` has it.
    """
    order = WindowOrder(
        rows=rows,
        window_size=1,
        epochs=epochs,
        shuffle=config.data.shuffle,
        seed=config.seed,
        shares=shares,
    )
    return replace(order, window_size=window_size(config.packing, order.epoch_size))


def window_size(packing: PackingSettings, epoch_size: int) -> int:
    """Conversations that are read together, and packed together where the loader packs."""
    # Never more than an epoch: a small file would be read ahead many times over, and a
    # conversation could share a row with itself.
    loader_packs = packing.mode is PackingMode.LOADER
    return min(packing.loader_buffer_size if loader_packs else SAMPLES_PER_WINDOW, epoch_size)


def epoch_rows(order: WindowOrder) -> npt.NDArray[np.int64]:
    """Every row of a finite order, one after the other, int64 ``[epochs * epoch_size]``."""
    # As windows of a whole epoch: each permutation is drawn once, not once per window.
    whole = replace(order, window_size=order.epoch_size)
    return np.concatenate([rows for _, rows in whole.windows()])


def epoch_windows(order: WindowOrder) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """What ``order.windows()`` yields for a finite order, faster where all of it is wanted."""
    rows = epoch_rows(order)
    for window, start in enumerate(range(0, rows.size, order.window_size)):
        yield window, rows[start : start + order.window_size]
