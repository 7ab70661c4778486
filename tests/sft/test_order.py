"""The order of a run, drawn once an epoch, is the order of the windows."""

from __future__ import annotations

import pytest

from data.windows import Share, WindowOrder
from sft.order import epoch_windows


@pytest.mark.parametrize("shuffle", [True, False])
def test_windows_drawn_once_an_epoch_are_the_same(shuffle: bool) -> None:
    order = WindowOrder(rows=23, window_size=5, epochs=3, shuffle=shuffle, seed=7)
    fast = [(w, rows.tolist()) for w, rows in epoch_windows(order)]
    assert fast == [(w, rows.tolist()) for w, rows in order.windows()]
    assert len(fast) == 14


def test_windows_drawn_once_an_epoch_are_the_same_with_weights() -> None:
    shares = (Share(rows=20, per_epoch=50), Share(rows=3, per_epoch=1))
    order = WindowOrder(rows=23, window_size=5, epochs=3, shuffle=True, seed=7, shares=shares)
    fast = [(w, rows.tolist()) for w, rows in epoch_windows(order)]
    assert fast == [(w, rows.tolist()) for w, rows in order.windows()]
    assert sum(len(rows) for _, rows in fast) == 3 * 51
