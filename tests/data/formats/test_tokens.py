"""Records that are tokens already: what is to be predicted, and what cannot be right."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from data.conversation import BadRecord, TokenRecord
from data.formats import Parser

PARSE = Parser("tokens")


def read(**record: Any) -> tuple[list[int], list[int]]:
    found = PARSE(json.dumps(record).encode())
    assert isinstance(found, TokenRecord)
    assert (found.tokens.dtype, found.targets.dtype) == (np.int64, np.bool_)
    return found.tokens.tolist(), found.targets.astype(int).tolist()


def test_all_but_the_first_without_anything_else() -> None:
    assert read(input_ids=[5, 6, 7]) == read(tokens=[5, 6, 7]) == ([5, 6, 7], [0, 1, 1])


def test_labels_say_what_is_to_be_predicted() -> None:
    assert read(input_ids=[5, 6, 7, 8], labels=[-100, -100, 7, 8])[1] == [0, 0, 1, 1]
    # Many write the ids themselves; nothing comes before the first.
    assert read(input_ids=[5, 6], labels=[5, 6])[1] == [0, 1]


@pytest.mark.parametrize("key", ["loss_mask", "targets"])
@pytest.mark.parametrize("mask", [[0, 1, 0, 1], [False, True, False, True], [0.0, 1.0, 0.0, 1.0]])
def test_masks(key: str, mask: list[Any]) -> None:
    assert read(input_ids=[5, 6, 7, 8], **{key: mask}) == ([5, 6, 7, 8], [0, 1, 0, 1])


def test_padding_goes() -> None:
    expected = ([5, 6, 7], [0, 0, 1])
    behind = read(
        input_ids=[5, 6, 7, 0, 0],
        labels=[-100, -100, 7, -100, -100],
        attention_mask=[1, 1, 1, 0, 0],
    )
    before = read(
        input_ids=[0, 0, 5, 6, 7], loss_mask=[0, 0, 0, 0, 1], attention_mask=[0, 0, 1, 1, 1]
    )
    assert behind == before == expected


def test_null_says_nothing() -> None:
    assert read(input_ids=[5, 6], tokens=None, labels=None, loss_mask=[0, 1])[1] == [0, 1]


def test_the_largest_id() -> None:
    assert read(input_ids=[0, 2**31 - 1])[0] == [0, 2**31 - 1]


IDS = {"input_ids": [5, 6, 7]}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, "no input_ids key"),
        ({"input_ids": None}, "no input_ids key"),
        ({"input_ids": [1, 2], "tokens": [1, 2]}, "both input_ids and tokens"),
        ({"input_ids": []}, "input_ids is empty"),
        ({"input_ids": "1 2 3"}, "input_ids is not a list of integers"),
        ({"input_ids": [1, 2.0]}, "input_ids is not a list of integers"),
        ({"input_ids": [1, True]}, "input_ids is not a list of integers"),
        ({"input_ids": [1, None]}, "input_ids is not a list of integers"),
        ({"input_ids": [[1, 2]]}, "input_ids is not a list of integers"),
        ({"input_ids": [1, -1]}, "a token id is out of range"),
        ({"input_ids": [1, 2**31]}, "a token id is out of range"),
        ({"input_ids": [1, 2**64]}, "a token id is out of range"),
        ({**IDS, "labels": [5, 6]}, "labels is not as long as input_ids"),
        ({**IDS, "labels": [-100, "6", 7]}, "labels is not a list of integers"),
        ({**IDS, "labels": [6, 7, -100]}, "labels differ from input_ids"),  # shifted
        ({**IDS, "labels": [5, 6, 7], "loss_mask": [1, 1, 1]},
         "more than one of labels, loss_mask and targets"),
        ({**IDS, "loss_mask": [0, 1]}, "loss_mask is not as long as input_ids"),
        ({**IDS, "loss_mask": [0, 0.5, 1]}, "loss_mask is not a list of 0 and 1"),
        ({**IDS, "targets": [0, None, 1]}, "targets is not a list of 0 and 1"),
        ({**IDS, "targets": "011"}, "targets is not a list of 0 and 1"),
        ({**IDS, "attention_mask": [1, 1]}, "attention_mask is not as long as input_ids"),
        ({**IDS, "attention_mask": [0, 0, 0]}, "input_ids is empty"),
        ({**IDS, "labels": [-100, -100, -100]}, "no token is to be predicted"),
        ({**IDS, "labels": [5, -100, -100]}, "no token is to be predicted"),
        ({"input_ids": [5]}, "no token is to be predicted"),
    ],
)  # fmt: skip
def test_each_reason(record: Any, expected: str) -> None:
    with pytest.raises(BadRecord) as bad:
        PARSE(json.dumps(record).encode())
    assert bad.value.reason == expected
