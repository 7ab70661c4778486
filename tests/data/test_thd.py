"""Rows and rectangles: the worked example, masks and boundaries, and what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.sample import Sample
from data.thd import Row, build_rectangle, build_row, validate_boundaries
from tests.conftest import make_sample


def sample(tokens: list[int], targets: list[int], name: str = "x") -> Sample:
    mask = [i in targets for i in range(len(tokens))]
    return Sample(tokens=tokens, targets=mask, source_id=name)


A, B = make_sample(5, name="convA"), make_sample(10, name="convB")


def test_worked_example_of_the_trainer() -> None:
    row = build_row([A, B], pad_multiple=4)
    assert row.tokens.shape == (1, 20)
    assert row.cu_seqlens.tolist() == [0, 5, 15]
    assert row.cu_seqlens_padded.tolist() == [0, 8, 20]
    assert row.max_seqlen == 12
    assert row.source_ids == ("convA", "convB")
    assert (row.slot_tokens, row.real_tokens) == (20, 15)


def test_worked_example_of_the_loader() -> None:
    row = build_row([A, B], pad_multiple=4, width=36)
    assert row.tokens.shape == (1, 36)
    assert row.cu_seqlens.tolist() == [0, 5, 15]
    # The tail belongs to the last sample.
    assert row.cu_seqlens_padded.tolist() == [0, 8, 36]
    assert row.max_seqlen == 28
    # Case A1: the last real token stands at 17, behind A's padding.
    assert row.tokens[0, 8:18].tolist() == B.tokens.tolist()


def test_labels_are_shifted_inside_each_sample_only() -> None:
    # Case B8: the last token of the first sample must not predict the first of the second.
    row = build_row([sample([10, 11], [1], "a"), sample([20, 21], [1], "b")])
    assert row.tokens.tolist() == [[10, 11, 20, 21]]
    assert row.labels.tolist() == [[11, 0, 21, 0]]
    assert row.loss_mask.tolist() == [[1, 0, 1, 0]]
    assert row.position_ids.tolist() == [[0, 1, 0, 1]]


def test_padding_is_never_trained_on_and_pad_id_is_only_a_filler() -> None:
    # Case E2: the pad id may be an id that samples use; masks go by position.
    row = build_row([sample([5, 6, 2], [1, 2])], width=5, pad_id=2)
    assert row.tokens.tolist() == [[5, 6, 2, 2, 2]]
    assert row.labels.tolist() == [[6, 2, 0, 0, 0]]
    assert row.loss_mask.tolist() == [[1, 1, 0, 0, 0]]
    assert row.position_ids.tolist() == [[0, 1, 2, 3, 4]]


def test_prompt_positions_keep_their_mask() -> None:
    # Cases A21 and D14: the first answer token is predicted from the last prompt token.
    row = build_row([sample([1, 2, 3, 4, 5], [2, 3, 4])])
    assert row.loss_mask.tolist() == [[0, 1, 1, 1, 0]]
    assert row.loss_tokens == 3
    assert row.token_mask is row.loss_mask


@pytest.mark.parametrize(
    ("lengths", "multiple", "padded"),
    [
        ([8, 16], 8, [0, 8, 24]),
        ([7, 16], 8, [0, 8, 24]),
        ([3, 2], 4, [0, 4, 8]),
        ([1], 1, [0, 1]),
    ],
)
def test_padded_boundaries(lengths: list[int], multiple: int, padded: list[int]) -> None:
    row = build_row([make_sample(n) for n in lengths], pad_multiple=multiple)
    assert row.cu_seqlens_padded.tolist() == padded
    assert row.cu_seqlens.tolist() == [0, *np.cumsum(lengths).tolist()]


def test_rectangle() -> None:
    rectangle = build_rectangle(
        [sample([1, 2, 3], [1, 2], "a"), sample([4, 5, 6, 7, 8], [4], "b")],
        pad_multiple=4,
        pad_id=9,
    )
    assert rectangle.tokens.tolist() == [[1, 2, 3, 9, 9, 9, 9, 9], [4, 5, 6, 7, 8, 9, 9, 9]]
    assert rectangle.labels.tolist() == [[2, 3, 0, 0, 0, 0, 0, 0], [5, 6, 7, 8, 0, 0, 0, 0]]
    assert rectangle.loss_mask.tolist() == [[1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0]]
    assert rectangle.position_ids.tolist() == [list(range(8))] * 2
    assert (rectangle.slot_tokens, rectangle.real_tokens, rectangle.loss_tokens) == (16, 8, 3)


def test_dtypes() -> None:
    row = build_row([A])
    assert {row.tokens.dtype, row.labels.dtype, row.position_ids.dtype} == {torch.int64}
    assert row.loss_mask.dtype == torch.float32
    assert {row.cu_seqlens.dtype, row.cu_seqlens_padded.dtype} == {torch.int32}
    assert type(row.max_seqlen) is int


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    multiple=st.sampled_from([1, 2, 4, 8, 12]),
    extra=st.integers(0, 5),
    fixed=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_row_holds_exactly_its_samples(
    lengths: list[int], multiple: int, extra: int, fixed: bool
) -> None:
    samples = [make_sample(n, seed=i) for i, n in enumerate(lengths)]
    needed = sum(-(-n // multiple) * multiple for n in lengths)
    width = needed + extra * multiple if fixed else None
    row = build_row(samples, pad_multiple=multiple, width=width, pad_id=999)
    assert row.tokens.shape[1] == (width or needed)
    assert row.loss_mask.sum() == row.loss_tokens == sum(s.loss_tokens for s in samples)
    assert row.real_tokens == int(row.cu_seqlens[-1]) == sum(lengths)
    assert int((row.tokens == 999).sum()) == row.slot_tokens - row.real_tokens
    for i, s in enumerate(samples):
        start = int(row.cu_seqlens_padded[i])
        assert row.tokens[0, start : start + len(s)].tolist() == s.tokens.tolist()
        assert row.position_ids[0, start] == 0
    # Each label is the next token of the same sample, wherever it counts.
    where = row.loss_mask[0].nonzero().flatten()
    assert torch.equal(row.labels[0, where], row.tokens[0, where + 1])


def test_rows_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        build_row([])
    with pytest.raises(ValueError, match="16 padded tokens do not fit a row of width 12"):
        build_row([A, A], pad_multiple=4, width=12)
    with pytest.raises(ValueError, match="width 10 is not a multiple of the pad multiple 4"):
        build_row([A], pad_multiple=4, width=10)


@pytest.mark.parametrize(
    ("real", "padded", "width", "longest", "message"),
    [
        ([0, 3, 3], [0, 4, 8], 8, 4, "empty segment"),
        ([0, 3, 5], [0, 4, 4], 4, 4, "empty segment"),
        ([0, 5, 8], [0, 4, 8], 8, 4, "longer than its padded extent"),
        ([0, 3], [0, 4], 6, 4, "the row's width"),
        ([0, 3], [0, 4], 4, 3, "the longest padded segment"),
        ([1, 3], [0, 4], 4, 4, "must start at 0"),
        ([0], [0], 0, 0, "at least one segment"),
        ([0, 0, 1208, 2048, 2048], [0, 0, 1208, 2048, 2048], 2048, 1208, "empty segment"),
    ],
)
def test_boundaries_a_kernel_would_misread(
    real: list[int], padded: list[int], width: int, longest: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        validate_boundaries(
            np.array(real, np.int32), np.array(padded, np.int32), width=width, max_seqlen=longest
        )


def test_boundaries_of_another_type() -> None:
    good = np.array([0, 4], np.int32)
    validate_boundaries(good, good, width=4, max_seqlen=4)
    with pytest.raises(ValueError, match="must be int32, got int64"):
        validate_boundaries(good.astype(np.int64), good, width=4, max_seqlen=4)
    with pytest.raises(ValueError, match="Python int"):
        validate_boundaries(good, good, width=4, max_seqlen=np.int64(4))  # type: ignore[arg-type]


def test_a_row_survives_pickling_without_shared_memory() -> None:
    row = build_row([A, B], pad_multiple=4)
    blob = pickle.dumps(row)
    again: Row = pickle.loads(blob)
    for name in ("tokens", "labels", "position_ids", "loss_mask", "cu_seqlens"):
        assert torch.equal(getattr(row, name), getattr(again, name))
    assert (again.max_seqlen, again.source_ids) == (row.max_seqlen, row.source_ids)
    assert b"torch" not in blob


def test_samples_are_checked() -> None:
    with pytest.raises(ValueError, match="first token cannot be a target"):
        Sample(tokens=[1, 2], targets=[True, False], source_id="f:1")
    with pytest.raises(ValueError, match=r"f:1: .* shapes \(2,\) and \(1,\)"):
        Sample(tokens=[1, 2], targets=[False], source_id="f:1")
    with pytest.raises(ValueError, match="at least one token"):
        Sample(tokens=[], targets=[], source_id="f:1")
