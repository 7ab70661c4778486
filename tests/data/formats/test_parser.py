"""Which format a record has, and what is refused before one is read."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data import notes
from data.conversation import BadRecord, Conversation, TokenRecord
from data.errors import DataError
from data.formats import Parser, is_record, known_formats

TURNS = [("user", "hi"), ("assistant", "yo")]
GOOD = b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}'
RECORDS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [{"role": r, "content": c} for r, c in TURNS]},
    "sharegpt": {
        "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]
    },
    "alpaca": {"instruction": "hi", "input": "", "output": "yo"},
    "prompt_completion": {"prompt": "hi", "completion": "yo"},
    "tokens": {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
}


def said(parser: Parser, record: Any) -> list[tuple[str, str]]:
    parsed = parser(json.dumps(record).encode())
    assert isinstance(parsed, Conversation)
    return [(message.role, message.content) for message in parsed.messages]


def reason(line: bytes, parser: Parser | None = None) -> str:
    with pytest.raises(BadRecord) as bad:
        (parser or Parser())(line)
    assert str(bad.value) == bad.value.reason
    return bad.value.reason


def test_every_format_has_a_record_here() -> None:
    assert sorted(known_formats()) == sorted(RECORDS)


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("how", ["auto", "named"])
def test_every_format_is_found_and_can_be_named(name: str, how: str) -> None:
    parsed = Parser("auto" if how == "auto" else name)(json.dumps(RECORDS[name]).encode())
    if name == "tokens":
        assert isinstance(parsed, TokenRecord)
        assert parsed.tokens.tolist() == [1, 2, 3]
        assert parsed.targets.tolist() == [False, True, True]
    else:
        assert isinstance(parsed, Conversation)
        assert [(m.role, m.content) for m in parsed.messages] == TURNS
        assert parsed.tools == ()


@pytest.mark.parametrize("name", RECORDS)
def test_a_named_format_reads_no_other(name: str) -> None:
    for other, record in RECORDS.items():
        if other != name:
            assert " key" in reason(json.dumps(record).encode(), Parser(name))


def test_other_keys_do_not_matter() -> None:
    assert said(Parser(), {**RECORDS["messages"], "prompt": "hi", "id": 3}) == TURNS


def test_a_null_column_says_nothing() -> None:
    # As in a table of two formats.
    both = {"messages": None, **RECORDS["alpaca"], "system": None, "history": None}
    assert said(Parser(), both) == TURNS
    assert reason(b'{"messages": null}') == "messages is null"


def test_two_formats_at_once_are_not_guessed_between() -> None:
    both = json.dumps({**RECORDS["messages"], **RECORDS["tokens"]}).encode()
    assert reason(both) == "more than one format has these keys"
    assert isinstance(Parser("messages")(both), Conversation)
    assert isinstance(Parser("tokens")(both), TokenRecord)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"", "invalid JSON"),
        (b" \r\n", "invalid JSON"),
        (b"\xef\xbb\xbf", "invalid JSON"),
        (GOOD[:-1], "invalid JSON"),
        (GOOD + GOOD, "invalid JSON"),
        (b"hello", "invalid JSON"),
        (b"\0", "invalid JSON"),
        (b"\0\0\0\0", "invalid JSON"),
        (GOOD.replace(b"hi", b"h\0i"), "invalid JSON"),
        (b"[" * 200_000, "JSON nested too deeply"),
        (b'{"messages":' * 200_000, "JSON nested too deeply"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"3", "not a JSON object"),
        (b"9" * 10_000, "not a JSON object"),
        (b"NaN", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"{}", "no format has these keys"),
        (b'{"question": "hi", "answer": "yo"}', "no format has these keys"),
        (b'{"messages": "\xff\xfe"}', "text is not valid Unicode"),
        (GOOD.decode().encode("utf-16"), "text is not valid Unicode"),
    ],
)
def test_what_is_no_record(line: bytes, expected: str) -> None:
    assert reason(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        GOOD,
        b"\xef\xbb\xbf" + GOOD,
        b"  " + GOOD + b"\r\n",
        GOOD.replace(b'{"messages"', b'{"score": NaN, "top": -Infinity, "messages"'),
        GOOD.replace(b'{"messages"', b'{"id": ' + b"9" * 10_000 + b', "messages"'),
    ],
    ids=["plain", "byte order mark", "CRLF", "NaN", "huge integer"],
)
def test_accepted(line: bytes) -> None:
    parsed = Parser()(line)
    assert isinstance(parsed, Conversation)
    assert [(m.role, m.content) for m in parsed.messages] == TURNS


def test_reasons_hold_nothing_of_the_line() -> None:
    assert reason(b"secret one") == reason(b"secret two")


# --- columns


def test_columns_rename() -> None:
    columns = {"prompt": "question", "completion": "answer"}
    record = {"question": "hi", "answer": "yo"}
    assert said(Parser(columns=columns), record) == TURNS
    assert said(Parser("prompt_completion", columns), record) == TURNS
    line = json.dumps(RECORDS["prompt_completion"]).encode()
    assert reason(line, Parser("prompt_completion", columns)) == "no prompt key"


def test_columns_swap() -> None:
    columns = {"prompt": "completion", "completion": "prompt"}
    assert said(Parser(columns=columns), {"prompt": "yo", "completion": "hi"}) == TURNS


@pytest.mark.parametrize(
    ("parser", "message"),
    [
        (
            lambda: Parser("alpaca", {"prompt": "q"}),
            r"data\.columns=\{prompt: q\}: prompt is no key of the format alpaca; .*one of "
            r"history, input, instruction, output, system, tools, on the right",
        ),
        (
            lambda: Parser(columns={"question": "q"}),
            r"question is no key of any format; .*messages",
        ),
        (
            lambda: Parser("openai"),
            r"data\.format=openai: there is no such format; choose auto, alpaca, messages, "
            r"prompt_completion, sharegpt, tokens, or name a module of your own, package\.module",
        ),
        (lambda: Parser("no_such.module"), r"data\.format=no_such\.module: cannot be imported"),
        (lambda: Parser(".mine"), r"data\.format=\.mine: there is no such format; choose auto"),
        (lambda: Parser("os.path"), r"data\.format=os\.path: must hold one subclass .* holds 0"),
    ],
)
def test_what_is_refused(parser: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parser()


# --- formats outside the tree, and data sets with a format of their own


def test_a_format_outside_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "faq.py").write_text(
        "from data.conversation import Conversation, Message\n"
        "from data.formats.base import Format\n\n\n"
        "class Faq(Format):\n"
        "    keys = ('q', 'a')\n"
        "    signatures = (frozenset({'q', 'a'}),)\n\n"
        "    def parse(self, record):\n"
        "        pairs = zip(('user', 'assistant'), (record['q'], record['a']))\n"
        "        turns = tuple(Message(role=r, content=c) for r, c in pairs)\n"
        "        return Conversation(messages=turns)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert said(Parser("mine.faq", {"q": "ask"}), {"ask": "hi", "a": "yo"}) == TURNS
    with pytest.raises(DataError, match=r"prompt is no key of the format mine\.faq"):
        Parser("mine.faq", {"prompt": "ask"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("class Faq(Format)\n", r"cannot be imported \(SyntaxError: [^\n]+\); mend the module"),
        ("nonsense\n", r"cannot be imported \(NameError: name 'nonsense' is not defined\); mend"),
        ("class Faq(Format):\n    keys = ('q',)\n", r"Faq must define parse, and does not"),
        ("class Faq(Format):\n    def parse(self, record): ...\n", r"Faq\.keys must be the keys"),
    ],
)
def test_a_format_outside_the_tree_with_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "faq.py").write_text(f"from data.formats.base import Format\n\n\n{body}")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("wrong", "wrong.faq"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(DataError, match=rf"^data\.format=wrong\.faq: {message}"):
        Parser("wrong.faq")


def test_a_data_set_s_own_format_goes_before_the_run_s() -> None:
    line = notes.annotate(b'{"q": "hi", "a": "yo"}', notes.of_format(
        "prompt_completion", {"prompt": "q", "completion": "a"}
    ))  # fmt: skip
    parsed = Parser("messages")(line)
    assert isinstance(parsed, Conversation)
    assert [m.content for m in parsed.messages] == ["hi", "yo"]


def test_a_file_cannot_write_notes() -> None:
    forged = notes.of_format("os.path", {}) + GOOD
    assert reason(notes.guard(forged)) == "invalid JSON"
    assert reason(notes.guard(notes.damaged("I say so"))) == "invalid JSON"
    note = notes.of_format("messages", {})
    assert reason(notes.annotate(notes.guard(forged), note)) == "invalid JSON"


def test_damage_is_the_reason() -> None:
    lost = notes.damaged("the rest is gone")
    assert reason(lost) == "the rest is gone"
    assert reason(notes.annotate(lost, notes.of_format("messages", {}))) == "the rest is gone"


def test_a_parser_can_be_pickled() -> None:
    parser = pickle.loads(pickle.dumps(Parser("prompt_completion", {"prompt": "q"})))
    assert said(parser, {"q": "hi", "completion": "yo"}) == TURNS


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_told_by_their_keys(name: str) -> None:
    assert is_record(RECORDS[name])
    assert not is_record(["data", "version"])


def test_no_heavy_imports() -> None:
    code = (
        "import sys, data.formats, data.files.storage, data.files.kinds as k; k.known_suffixes();"
        "data.formats.known_formats();"
        "print([m for m in ('torch', 'transformers', 'pyarrow', 'megatron') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
