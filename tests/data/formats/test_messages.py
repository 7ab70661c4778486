"""OpenAI's messages, with tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from data.conversation import BadRecord, Conversation, Message
from data.formats import Parser

PARSE = Parser("messages")
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
ANSWER = {"role": "assistant", "content": "yo"}


def parsed(*messages: Any, **keys: Any) -> Conversation:
    found = PARSE(json.dumps({"messages": list(messages), **keys}).encode())
    assert isinstance(found, Conversation)
    return found


def reason(record: Any) -> str:
    line = record if isinstance(record, bytes) else json.dumps(record).encode()
    with pytest.raises(BadRecord) as bad:
        PARSE(line)
    return bad.value.reason


def test_all_roles_in_order() -> None:
    turns = [(r, f"{r} says") for r in ("system", "user", "assistant", "tool", "assistant")]
    found = parsed(*({"role": r, "content": c} for r, c in turns))
    assert [(m.role, m.content) for m in found.messages] == turns


def test_other_names_of_roles() -> None:
    found = parsed(
        {"role": "developer", "content": "a"}, ANSWER, {"role": "function", "content": "b"}
    )
    assert [m.role for m in found.messages] == ["system", "assistant", "tool"]


def test_a_call_of_a_tool_needs_no_content() -> None:
    for answer in (
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
    ):
        (message,) = parsed(answer).messages
        assert message == Message(role="assistant", content="", extra={"tool_calls": [CALL]})


def test_a_round_trip_through_a_tool() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 5}}}]
    result = {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "1"}
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    found = parsed({"role": "user", "content": "?"}, call, result, ANSWER, tools=tools)
    assert found.tools == tuple(tools)
    assert found.messages[2].extra == {"tool_call_id": "c1", "name": "f"}
    assert found == parsed(
        {"role": "user", "content": "?"}, call, result, ANSWER, tools=json.dumps(tools)
    )


def test_integers_in_arguments_stay_integers() -> None:
    call = {"function": {"name": "f", "arguments": {"n": 5, "big": 2**70, "x": 5.0}}}
    (message,) = parsed({"role": "assistant", "tool_calls": [call]}).messages
    assert json.dumps(message.extra["tool_calls"]) == json.dumps([call])


def test_the_old_way_to_call_a_function() -> None:
    answer = {
        "role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}
    }  # fmt: skip
    (message,) = parsed(answer).messages
    assert message.extra["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]


def test_what_else_a_template_may_use_is_kept_and_null_is_nothing() -> None:
    answer = {**ANSWER, "reasoning_content": "hm", "name": None, "tool_calls": None, "weight": 1}
    assert parsed(answer, tools=None).messages[0].extra == {"reasoning_content": "hm"}


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}, "c"]
    assert parsed({"role": "user", "content": parts}, ANSWER).messages[0].content == "a bc"
    assert parsed({"role": "assistant", "content": []}).messages[0].content == ""


def test_an_empty_answer_is_content() -> None:
    assert parsed({"role": "assistant", "content": ""}).messages[0].content == ""


def test_text_beyond_ascii_escaped_or_not() -> None:
    for content in ("grüße 👍", "gr\\u00fc\\u00dfe \\ud83d\\udc4d"):
        line = f'{{"messages": [{{"role": "assistant", "content": "{content}"}}]}}'.encode()
        found = PARSE(line)
        assert isinstance(found, Conversation)
        assert found.messages[0].content == "grüße 👍"


def one(message: Any, **keys: Any) -> dict[str, Any]:
    return {"messages": [message, ANSWER], **keys}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, "no messages key"),
        ({"messages": None}, "messages is null"),
        ({"messages": "hi"}, "messages is not a list"),
        ({"messages": {"role": "user", "content": "hi"}}, "messages is not a list"),
        ({"messages": []}, "messages is empty"),
        (one("hi"), "a message is not an object"),
        (one(None), "a message is not an object"),
        (one({"content": "hi"}), "a message has no role"),
        (one({"role": "gpt", "content": "hi"}), "unknown role"),
        (one({"role": "pad", "content": "hi"}), "unknown role"),
        (one({"role": None, "content": "hi"}), "unknown role"),
        (one({"role": ["user"], "content": "hi"}), "unknown role"),
        (one({"role": "assistant"}), "content is not a string"),
        (one({"role": "assistant", "content": None}), "content is not a string"),
        (one({"role": "assistant", "content": None, "tool_calls": []}), "content is not a string"),
        (one({"role": "user", "content": 3}), "content is not a string"),
        (one({"role": "user", "content": float("nan")}), "content is not a string"),
        (one({"role": "user", "content": {"text": "hi"}}), "content is not a string"),
        (one({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}),
         "content has a part that is not text"),
        (one({"role": "user", "content": [{"type": "text"}]}),
         "content has a part that is not text"),
        (one({"role": "user", "content": [3]}), "content has a part that is not text"),
        (one({"role": "assistant", "tool_calls": "f()"}), "tool_calls is not a list of objects"),
        (one({"role": "assistant", "tool_calls": ["f"]}), "tool_calls is not a list of objects"),
        (one({"role": "assistant", "function_call": {"arguments": "{}"}}),
         "a function call names no function"),
        (one({"role": "tool", "content": "1", "tool_call_id": 7}), "tool_call_id is not a string"),
        (one(ANSWER, tools="{broken"), "tools is not a list of objects"),
        (one(ANSWER, tools='{"a": 1}'), "tools is not a list of objects"),
        (one(ANSWER, tools=[1]), "tools is not a list of objects"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "no assistant turn"),
        (one({"role": "user", "content": "\ud800"}), "text is not valid Unicode"),
        (one({"role": "tool", "content": "", "name": "\udfff"}), "text is not valid Unicode"),
        (one({"role": "assistant", "tool_calls": [{"f": {"a": ["\ud800"]}}]}),
         "text is not valid Unicode"),
        (one({"role": "assistant", "tool_calls": [{"\ud800": 1}]}), "text is not valid Unicode"),
        (one(ANSWER, tools=[{"name": "\ud800"}]), "text is not valid Unicode"),
        (one(ANSWER, tools='[{"name": "\\ud800"}]'), "text is not valid Unicode"),
        (b'{"messages": [{"role": "assistant", "tool_calls": [%s1%s]}]}'
         % (b'{"a":' * 300, b"}" * 300), "JSON nested too deeply"),
        (one(ANSWER, tools="[" * 100_000), "JSON nested too deeply"),
    ],
)  # fmt: skip
def test_each_reason(record: Any, expected: str) -> None:
    assert reason(record) == expected


def test_a_bad_message_anywhere_spoils_the_record() -> None:
    assert reason({"messages": [ANSWER, ANSWER, {"role": "user", "content": None}]}) == (
        "content is not a string"
    )
