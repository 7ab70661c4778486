"""Alpaca: instruction, input, output, and what came before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from data.conversation import BadRecord, Conversation
from data.formats import Parser

PARSE = Parser("alpaca")


def said(**record: Any) -> list[tuple[str, str]]:
    found = PARSE(json.dumps(record).encode())
    assert isinstance(found, Conversation)
    return [(m.role, m.content) for m in found.messages]


def test_the_input_stands_behind_a_blank_line() -> None:
    assert said(instruction="Add.", input="1 2", output="3") == [
        ("user", "Add.\n\n1 2"), ("assistant", "3"),
    ]  # fmt: skip


@pytest.mark.parametrize("empty", ["", None])
def test_without_input(empty: str | None) -> None:
    expected = [("user", "Hi"), ("assistant", "yo")]
    assert said(instruction="Hi", input=empty, output="yo") == expected
    assert said(instruction="Hi", output="yo", system=empty, history=None) == expected


def test_system_and_history() -> None:
    found = said(system="S", history=[["a", "b"], ["c", "d"]], instruction="e", output="f")
    assert found == [
        ("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"),
        ("user", "e"), ("assistant", "f"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"output": "yo"}, "no instruction key"),
        ({"instruction": "hi"}, "no output key"),
        ({"instruction": None, "output": "yo"}, "instruction is not a string"),
        ({"instruction": "hi", "output": None}, "output is not a string"),
        ({"instruction": "hi", "output": ["yo"]}, "output is not a string"),
        ({"instruction": "hi", "output": "yo", "input": 3}, "input is not a string"),
        ({"instruction": "hi", "output": "yo", "system": ["s"]}, "system is not a string"),
        ({"instruction": "hi", "output": "yo", "history": "a"}, "history is not a list of pairs"),
        ({"instruction": "hi", "output": "yo", "history": [["a"]]},
         "history is not a list of pairs"),
        ({"instruction": "hi", "output": "yo", "history": ["ab"]},
         "history is not a list of pairs"),
        ({"instruction": "hi", "output": "yo", "history": [["a", None]]},
         "history holds something that is no text"),
        ({"instruction": "\ud800", "output": "yo"}, "text is not valid Unicode"),
    ],
)  # fmt: skip
def test_each_reason(record: Any, expected: str) -> None:
    with pytest.raises(BadRecord) as bad:
        PARSE(json.dumps(record).encode())
    assert bad.value.reason == expected
