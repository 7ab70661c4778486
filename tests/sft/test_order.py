"""The order of a run, drawn once an epoch, is the order of the windows."""

from __future__ import annotations

import pytest

from data.windows import WindowOrder
from sft.order import epoch_windows


@pytest.mark.parametrize("shuffle", [True, False])
def test_windows_drawn_once_an_epoch_are_the_same(shuffle: bool) -> None:
    order = WindowOrder(rows=23, window_size=5, epochs=3, shuffle=shuffle, seed=7)
    fast = [(w, rows.tolist()) for w, rows in epoch_windows(order)]
    assert fast == [(w, rows.tolist()) for w, rows in order.windows()]
    assert len(fast) == 14
