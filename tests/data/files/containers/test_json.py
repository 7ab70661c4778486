"""JSON documents: which records they hold, and what is used of damaged ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from data.conversation import BadRecord
from data.errors import DataError
from data.formats import Parser
from tests.data.files.stores import chat, chats, lines, opened, records, rows


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def outcomes(path: Path) -> list[tuple[str, str]]:
    """For each row its label, and its question or the reason why it has none."""
    found = []
    for source_id, line in rows(opened(path)):
        try:
            found.append((source_id, Parser()(line).messages[0].content))  # type: ignore[union-attr]
        except BadRecord as bad:
            found.append((source_id, bad.reason))
    return found


@pytest.mark.parametrize("indent", [None, 1, 2])
@pytest.mark.parametrize("key", [None, "data", "train"])
def test_a_list_of_records(tmp_path: Path, indent: int | None, key: str | None) -> None:
    content: Any = chats(5)
    if key is not None:
        content = {"version": 1, "tags": ["a", "b"], "about": {"n": [{}]}, key: content, "z": []}
    path = write(tmp_path / "c.json", json.dumps(content, indent=indent))
    assert records(opened(path)) == chats(5)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "record",
    [
        chat("q0"),
        {"tools": [{"name": "f"}], **chat("q0")},
        {"prompt": [{"role": "user", "content": "q0"}], "completion": [{"role": "assistant"}]},
        {"system": "s", "history": [], "instruction": "q0", "output": "yo"},
    ],
)
def test_a_single_record(tmp_path: Path, indent: int | None, record: Any) -> None:
    path = write(tmp_path / "c.json", json.dumps(record, indent=indent))
    assert records(opened(path)) == [record]


def test_lines_in_a_json_file_are_used_where_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", b"\xef\xbb\xbf\n" + lines(chats(3)) + b"{broken\n")
    file = opened(path)
    assert file.path == path
    assert outcomes(path) == [
        ("c.json:2", "q0"), ("c.json:3", "q1"), ("c.json:4", "q2"), ("c.json:5", "invalid JSON"),
    ]  # fmt: skip
    assert not (tmp_path / "cache").exists()


def test_lines_in_a_compressed_json_file(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json.gz", gzip.compress(lines(chats(3))))
    assert records(opened(path)) == chats(3)


@pytest.mark.parametrize("layout", ["[\n%s\n,\n%s\n]", "[%s\n,%s]", "[\n%s,\n%s\n]\n"])
def test_lists_with_a_record_on_a_line_are_no_lines(tmp_path: Path, layout: str) -> None:
    path = write(tmp_path / "c.json", layout % tuple(json.dumps(c) for c in chats(2)))
    assert records(opened(path)) == chats(2)


def test_text_beyond_ascii_and_a_byte_order_mark(tmp_path: Path) -> None:
    content = json.dumps([chat("grüße 👍")], ensure_ascii=False, indent=1)
    path = write(tmp_path / "c.json", b"\xef\xbb\xbf" + content.encode())
    assert outcomes(path) == [("c.json:1", "grüße 👍")]


@pytest.mark.parametrize("size", [10, 1 << 18, 3 << 20])
def test_records_of_any_size(tmp_path: Path, size: int) -> None:
    # Larger than what is read at a time, so that values and escapes are cut everywhere.
    many = [chat("ü\n" * (size // 2)), chat("x" * size), *chats(20)]
    path = write(tmp_path / "c.json", json.dumps(many))
    assert records(opened(path)) == many


@pytest.mark.parametrize("keep", range(1, 60, 3))
def test_what_stands_before_a_cut_is_used(tmp_path: Path, keep: int) -> None:
    whole = json.dumps(chats(3))
    ends = [len(json.dumps(chats(n))) - 1 for n in (1, 2, 3)]
    cut = len(whole) - keep
    path = write(tmp_path / "c.json", whole[:cut])
    complete = [f"q{i}" for i, end in enumerate(ends) if end <= cut]
    expected = [*complete, "JSON is broken from here on"]
    assert outcomes(path) == [(f"c.json:{i + 1}", what) for i, what in enumerate(expected)]


def test_damage_in_the_middle(tmp_path: Path) -> None:
    good = json.dumps(chat("q"))
    path = write(tmp_path / "c.json", f"[{good}, {good}, {{broken}}, {good}]")
    assert [what for _, what in outcomes(path)] == ["q", "q", "JSON is broken from here on"]


def test_a_record_that_is_wrong_in_itself_is_one(tmp_path: Path) -> None:
    good = json.dumps(chat("q")).encode()
    wrong = [
        good.replace(b"q", b"\0"), good.replace(b"q", b"\n"), good.replace(b"q", b"\xff"),
        b"[1, 2]", b"null", b'"text"', b"9" * 10_000, b"{}",
    ]  # fmt: skip
    path = write(tmp_path / "c.json", b"[%s]" % b",\n".join([good, *wrong, good]))
    assert [what for _, what in outcomes(path)] == [
        "q", "invalid JSON", "invalid JSON", "text is not valid Unicode", "not a JSON object",
        "not a JSON object", "not a JSON object", "not a JSON object", "no format has these keys",
        "q",
    ]  # fmt: skip


def test_nested_too_deeply(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", f"[{json.dumps(chat('q'))}, " + "[" * 200_000)
    assert [what for _, what in outcomes(path)] == ["q", "JSON nested too deeply"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "JSON is broken from here on"),
        ("hello", "JSON is broken from here on"),
        ("[] []", "JSON is broken from here on"),
        ('{"a": 1}', "a JSON file without a list of records"),
        ('{"a": ["x"], "b": []}', "a JSON file without a list of records"),
        ("{}", "a JSON file without a list of records"),
        ("3", "a JSON file without a list of records"),
        ('"hello"', "a JSON file without a list of records"),
    ],
)
def test_no_records_but_damage(tmp_path: Path, content: str, expected: str) -> None:
    assert outcomes(write(tmp_path / "c.json", content)) == [("c.json:1", expected)]


def test_two_lists_of_records_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", json.dumps({"train": chats(2), "test": chats(1)}))
    with pytest.raises(DataError, match=r"c\.json: it holds two lists of records, train and test"):
        opened(path)
    assert list((tmp_path / "cache" / "converted").glob("*.jsonl")) == []
