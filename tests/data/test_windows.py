"""The order of conversations: every one once per epoch, in windows that do not move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.windows import WindowOrder


def order(
    rows: int, size: int, epochs: int | None = 1, shuffle: bool = True, seed: int = 1
) -> WindowOrder:
    return WindowOrder(rows=rows, window_size=size, epochs=epochs, shuffle=shuffle, seed=seed)


@given(
    rows=st.integers(1, 50),
    size=st.integers(1, 60),
    epochs=st.integers(1, 4),
    stride=st.integers(1, 5),
)
@settings(max_examples=200, deadline=None)
def test_every_row_once_per_epoch_whoever_reads(
    rows: int, size: int, epochs: int, stride: int
) -> None:
    o = order(rows, size, epochs)
    by_window = {}
    for first in range(stride):
        for window, members in o.windows(first, stride):
            assert window % stride == first
            by_window[window] = members
    stream = np.concatenate([by_window[w] for w in sorted(by_window)])
    assert sorted(by_window) == list(range(len(by_window)))
    assert stream.size == rows * epochs
    for epoch in range(epochs):
        part = stream[epoch * rows : (epoch + 1) * rows]
        assert sorted(part.tolist()) == list(range(rows))


def test_epochs_are_reshuffled() -> None:
    _, first = next(order(100, 100, 2).windows())
    _, second = next(order(100, 100, 2).windows(1))
    assert first.tolist() != second.tolist()
    assert first.tolist() != list(range(100))


def test_without_shuffling_the_file_s_order() -> None:
    windows = [w.tolist() for _, w in order(5, 3, 2, shuffle=False).windows()]
    assert windows == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4]]
    assert order(5, 3, shuffle=False).row_order(0, 4).tolist() == [0, 1, 2, 3]


def test_the_seed_decides() -> None:
    def stream(seed: int) -> list[int]:
        return next(order(50, 50, seed=seed).windows())[1].tolist()

    assert stream(1) == stream(1) != stream(2)


def test_an_endless_stream() -> None:
    windows = order(3, 2, epochs=None).windows()
    seen = np.concatenate([next(windows)[1] for _ in range(30)])
    assert np.bincount(seen).tolist() == [20, 20, 20]


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_row_order_is_a_permutation(rows: int) -> None:
    o = order(10, 10)
    assert sorted(o.row_order(3, rows).tolist()) == list(range(rows))
    assert o.row_order(3, rows).tolist() == o.row_order(3, rows).tolist()


def test_row_order_differs_between_windows() -> None:
    o = order(10, 10)
    assert o.row_order(0, 30).tolist() != o.row_order(1, 30).tolist()
