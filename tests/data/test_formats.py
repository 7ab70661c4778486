import json

import pytest

from data.formats import BadRecord, Message, parse_record

GOOD = b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}'
PARSED = [Message("user", "hi"), Message("assistant", "yo")]


def reason(line: bytes) -> str:
    with pytest.raises(BadRecord) as bad:
        parse_record(line)
    assert str(bad.value) == bad.value.reason
    return bad.value.reason


def messages(value: str) -> bytes:
    return b'{"messages": %s}' % value.encode()


def test_all_roles_in_order() -> None:
    turns = [(r, f"{r} says") for r in ("system", "user", "assistant", "tool", "assistant")]
    record = {"messages": [{"role": r, "content": c} for r, c in turns]}
    assert parse_record(json.dumps(record).encode()) == [Message(r, c) for r, c in turns]


@pytest.mark.parametrize(
    "line",
    [
        GOOD,
        b"\xef\xbb\xbf" + GOOD,
        b"  " + GOOD + b"\r\n",
        GOOD.replace(b'"hi"', b'"hi", "name": null, "tool_calls": [{}]'),
        GOOD.replace(b'{"messages"', b'{"score": NaN, "top": -Infinity, "messages"'),
        GOOD.replace(b'{"messages"', b'{"id": ' + b"9" * 10_000 + b', "messages"'),
    ],
    ids=["plain", "byte order mark", "CRLF", "extra keys", "NaN", "huge integer"],
)
def test_accepted(line: bytes) -> None:
    assert parse_record(line) == PARSED


def test_an_empty_answer_is_content() -> None:
    assert parse_record(messages('[{"role": "assistant", "content": ""}]')) == [
        Message("assistant", "")
    ]


def test_text_beyond_ascii_escaped_or_not() -> None:
    for content in ("grüße 👍", "gr\\u00fc\\u00dfe \\ud83d\\udc4d"):
        line = messages(f'[{{"role": "assistant", "content": "{content}"}}]')
        assert parse_record(line) == [Message("assistant", "grüße 👍")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"", "invalid JSON"),
        (b" \r\n", "invalid JSON"),
        (b"\xef\xbb\xbf", "invalid JSON"),
        (GOOD[:-1], "invalid JSON"),
        (GOOD + GOOD, "invalid JSON"),
        (b"hello", "invalid JSON"),
        (b"[" * 200_000, "JSON nested too deeply"),
        (b'{"messages":' * 200_000, "JSON nested too deeply"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"3", "not a JSON object"),
        (b"NaN", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"{}", "no messages key"),
        (b'{"prompt": "hi", "answer": "yo"}', "no messages key"),
        (messages("null"), "messages is null"),
        (messages('"hi"'), "messages is not a list"),
        (messages('{"role": "user", "content": "hi"}'), "messages is not a list"),
        (messages("[]"), "messages is empty"),
        (messages('["hi"]'), "a message is not an object"),
        (messages("[null]"), "a message is not an object"),
        (messages('[{"content": "hi"}]'), "a message has no role"),
        (messages('[{"role": "gpt", "content": "hi"}]'), "unknown role"),
        (messages('[{"role": "pad", "content": "hi"}]'), "unknown role"),
        (messages('[{"role": null, "content": "hi"}]'), "unknown role"),
        (messages('[{"role": ["user"], "content": "hi"}]'), "unknown role"),
        (messages('[{"role": "assistant"}]'), "content is not a string"),
        (messages('[{"role": "assistant", "content": 3}]'), "content is not a string"),
        (messages('[{"role": "assistant", "content": NaN}]'), "content is not a string"),
        (
            messages('[{"role": "assistant", "content": [{"type": "text", "text": "hi"}]}]'),
            "content is not a string",
        ),
        (
            messages('[{"role": "assistant", "content": null, "tool_calls": [{}]}]'),
            "content is not a string",
        ),
        (messages('[{"role": "assistant", "content": "\\ud800"}]'), "text is not valid Unicode"),
        (b'{"messages": "\xff\xfe"}', "text is not valid Unicode"),
        (GOOD.decode().encode("utf-16"), "text is not valid Unicode"),
        (messages('[{"role": "user", "content": "hi"}]'), "no assistant turn"),
    ],
)
def test_each_reason(line: bytes, expected: str) -> None:
    assert reason(line) == expected


def test_a_bad_message_anywhere_spoils_the_record() -> None:
    line = GOOD.replace(b'"content": "yo"', b'"content": null')
    assert reason(line) == "content is not a string"


def test_reasons_hold_nothing_of_the_line() -> None:
    assert reason(b"secret one") == reason(b"secret two")
