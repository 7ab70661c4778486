"""Rows and steps from lengths alone: by hand, and against what groups and packs them in a run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from data.packers.ffd import FirstFitDecreasing
from data.packing.steps import up_to_tokens
from data.windows import WindowOrder
from sft.preview.cli import choices_of
from sft.preview.rows import Rows, _spread, packed_rows, rectangles
from sft.preview.stream import Stream, _up_to_tokens


def test_steps_of_so_many_tokens_are_the_run_s() -> None:
    rng = np.random.default_rng(0)
    for budget in (50, 64, 1000):
        padded = rng.integers(1, 51, 400)
        groups = list(up_to_tokens([range(n) for n in padded.tolist()], budget, 1))
        ends = np.cumsum([len(g) for g in groups])
        assert _up_to_tokens(padded, budget).tolist() == [0, *ends.tolist()]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100])
def test_any_first_part_is_spread_evenly(count: int) -> None:
    order = _spread(count)
    assert sorted(order.tolist()) == list(range(count))
    for part in (4, 16):
        if part < count:
            gaps = np.diff(np.sort(order[:part]))
            assert gaps.max() <= 2 * -(-count // part)


def test_rectangles_by_hand() -> None:
    stream = Stream(
        lengths=np.array([3, 5, 2, 7, 1]),
        padded=np.array([4, 8, 4, 8, 4]),
        offsets=np.array([0, 3, 5]),
        order=WindowOrder(rows=5, window_size=5, epochs=1, shuffle=False, seed=0),
        epochs=1,
    )
    rows = rectangles(stream, 2)
    assert rows.samples.tolist() == [2, 1, 2]
    assert rows.slot_tokens.tolist() == [16, 4, 16]
    assert rows.real_tokens.tolist() == [8, 2, 8]
    assert rows.squared_lengths.tolist() == [34, 4, 50]
    assert rows.squared_segments.tolist() == [2 * 64, 16, 2 * 64]
    assert rows.step.tolist() == [0, 0, 1]
    assert rows.per_step(rows.slot_tokens).tolist() == [20, 16]


@pytest.mark.parametrize(
    ("overrides", "segments"),
    [
        # The tail of a loader's row, 8 slots of the second one, belongs to its last sample.
        (("packing=loader",), [8**2 + 8**2, 4**2 + 12**2]),
        (("packing=loader", "packing.kernel_boundaries=real"), [7**2 + 5**2, 3**2 + 2**2]),
        (("packing=trainer",), [7**2 + 5**2, 3**2 + 2**2]),
        (("packing=trainer", "packing.kernel_boundaries=padded"), [8**2 + 8**2, 4**2 + 4**2]),
    ],
)
def test_squared_segments_are_what_the_kernel_is_told(
    overrides: tuple[str, ...], segments: list[int]
) -> None:
    (choice,) = choices_of([
        *overrides, "packer=ffd", "packing.capacity=16", "packing.pad_multiple=4",
        "train.global_batch_tokens=32", "data.shuffle=false",
    ])  # fmt: skip
    stream = Stream.of(np.array([3, 7, 5, 2]), choice.config, choice.derived)
    rows = packed_rows(stream, choice.config, choice.derived, math.inf)
    # The padded lengths are 4, 8, 8, 4, and the two longest fill a row.
    assert FirstFitDecreasing().pack(stream.padded, 16) == [[1, 2], [0, 3]]
    assert rows.squared_segments.tolist() == segments
    assert rows.squared_lengths.tolist() == [7**2 + 5**2, 3**2 + 2**2]


def test_rows_have_a_length() -> None:
    one = np.ones(3, dtype=np.int64)
    rows = Rows(samples=one, real_tokens=one, padded_tokens=one, slot_tokens=one,
                squared_lengths=one, squared_segments=one, step=np.arange(3), groups=1,
                fewest=None)  # fmt: skip
    assert len(rows) == 3
