"""The order of conversations: every one once per epoch, in windows that do not move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.windows import Share, WindowOrder


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


def weighed(*shares: tuple[int, int], size: int, epochs: int | None, shuffle: bool) -> WindowOrder:
    return WindowOrder(
        rows=sum(rows for rows, _ in shares),
        window_size=size,
        epochs=epochs,
        shuffle=shuffle,
        seed=3,
        shares=tuple(Share(rows=rows, per_epoch=n) for rows, n in shares),
    )


SHARES = st.lists(
    st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, 40))),
    min_size=1,
    max_size=4,
)


@given(shares=SHARES, size=st.integers(1, 50), epochs=st.integers(1, 5), shuffle=st.booleans())
@settings(max_examples=60, deadline=None)
def test_weights_hold_in_every_epoch_and_even_out_over_epochs(
    shares: list[tuple[int, int]], size: int, epochs: int, shuffle: bool
) -> None:
    o = weighed(*shares, size=size, epochs=epochs, shuffle=shuffle)
    stream = np.concatenate([rows for _, rows in o.windows()])
    assert stream.size == epochs * o.epoch_size == epochs * sum(n for _, n in shares)
    ends = np.cumsum([0, *(rows for rows, _ in shares)])
    seen = np.zeros(o.rows, dtype=int)
    for epoch in range(epochs):
        part = stream[epoch * o.epoch_size : (epoch + 1) * o.epoch_size]
        counts = np.bincount(part, minlength=o.rows)
        seen += counts
        for (rows, per_epoch), first, last in zip(shares, ends[:-1], ends[1:], strict=True):
            assert counts[first:last].sum() == per_epoch
            assert set(counts[first:last]) <= {per_epoch // rows, -(-per_epoch // rows)}
            # No conversation is ahead of another by more than one.
            assert np.ptp(seen[first:last]) <= 1


@given(shares=SHARES, size=st.integers(1, 50), stride=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_weights_do_not_depend_on_who_reads(
    shares: list[tuple[int, int]], size: int, stride: int
) -> None:
    o = weighed(*shares, size=size, epochs=3, shuffle=True)
    alone = {window: rows.tolist() for window, rows in o.windows()}
    together = {w: rows.tolist() for first in range(stride) for w, rows in o.windows(first, stride)}
    assert together == alone


def test_a_half_that_differs_each_epoch() -> None:
    o = weighed((100, 50), size=50, epochs=4, shuffle=True)
    epochs = [set(rows.tolist()) for _, rows in o.windows()]
    assert [len(epoch) for epoch in epochs] == [50, 50, 50, 50]
    assert epochs[0] | epochs[1] == set(range(100))
    assert epochs[0] != set(range(50))


def test_without_shuffling_copies_follow_one_another() -> None:
    o = weighed((2, 4), (3, 3), size=7, epochs=1, shuffle=False)
    assert next(o.windows())[1].tolist() == [0, 1, 0, 1, 2, 3, 4]


def test_weights_of_one_change_nothing() -> None:
    plain = order(30, 7, epochs=2)
    weights = WindowOrder(
        rows=30, window_size=7, epochs=2, shuffle=True, seed=1,
        shares=(Share(rows=10, per_epoch=10), Share(rows=20, per_epoch=20)),
    )  # fmt: skip
    assert [r.tolist() for _, r in weights.windows()] == [r.tolist() for _, r in plain.windows()]
