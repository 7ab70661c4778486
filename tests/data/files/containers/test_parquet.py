"""Parquet: rows as records, values that JSON does not know, and damage."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.conversation import Conversation
from data.formats import Parser
from tests.data.files.stores import chat, chats, ids, opened, reason, records, rows, write_parquet


def test_columns_that_not_every_row_has(tmp_path: Path) -> None:
    # A table has every key in every row; what is not there is null.
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    mixed = [chat("a"), {"messages": [{"role": "user", "content": "b"}, call]}]
    write_parquet(tmp_path / "c.parquet", mixed)
    parsed = [Parser()(line) for _, line in rows(opened(tmp_path / "c.parquet"))]
    assert all(isinstance(found, Conversation) for found in parsed)
    first, second = parsed
    assert first.messages[1].extra == {}  # type: ignore[union-attr]
    assert second.messages[1].extra["tool_calls"] == call["tool_calls"]  # type: ignore[union-attr]


def test_tokens_stay_integers(tmp_path: Path) -> None:
    write_parquet(tmp_path / "c.parquet", [{"input_ids": [1, 2, 3]}])
    assert rows(opened(tmp_path / "c.parquet"))[0][1] == b'{"input_ids": [1, 2, 3]}'


def test_values_that_json_does_not_know(tmp_path: Path) -> None:
    table = pa.table(
        {
            "when": pa.array([datetime.datetime(2020, 1, 2, 3, 4, 5)]),
            "price": pa.array([decimal.Decimal("1.50")]),
            "text": pa.array(["grüße".encode()], pa.binary()),
            "image": pa.array([b"\xff\xd8"], pa.binary()),
            "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        }
    )
    pq.write_table(table, tmp_path / "c.parquet")
    (record,) = records(opened(tmp_path / "c.parquet"))
    assert record == {
        "when": "2020-01-02 03:04:05",
        "price": "1.50",
        "text": "grüße",
        "image": "\udcff\udcd8",
        "map": {"a": 1},
    }


def test_a_row_that_is_no_text_costs_only_itself(tmp_path: Path) -> None:
    lines: list[Any] = [b"a", b"\xff", b"c"]
    wrong = pa.array(lines, pa.binary()).view(pa.string())
    pq.write_table(
        pa.table({"prompt": wrong, "completion": ["x", "y", "z"]}), tmp_path / "c.parquet"
    )
    found = rows(opened(tmp_path / "c.parquet"))
    assert [reason(line) for _, line in found] == [None, "text is not valid Unicode", None]
    assert [source_id for source_id, _ in found] == [f"c.parquet:{n}" for n in (1, 2, 3)]
    assert json.loads(found[2][1]) == {"prompt": "c", "completion": "z"}


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"x" * 100 + b"PAR1", b"hello" * 50])
def test_not_parquet_at_all(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.parquet"
    path.write_bytes(content)
    ((source_id, line),) = rows(opened(path))
    assert source_id == "c.parquet:1"
    assert reason(line) == "not a Parquet file, or its end is damaged"


def test_a_damaged_row_group_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    write_parquet(path, chats(30), group_size=10)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    start = column.data_page_offset
    content = bytearray(path.read_bytes())
    middle = start + column.total_compressed_size // 2
    content[middle : middle + 8] = b"\xff" * 8
    path.write_bytes(content)
    file = opened(path)
    good = [json.loads(line) for _, line in rows(file) if reason(line) is None]
    assert good == [*chats(30)[:10], *chats(30)[20:]]
    lost = [(i, reason(line)) for i, line in rows(file) if reason(line)]
    assert lost == [("c.parquet:11", "a part of a Parquet file is damaged")]
    assert ids(file)[-1] == "c.parquet:30"
