"""ShareGPT: who speaks, and calls of functions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from data.conversation import BadRecord, Conversation
from data.formats import Parser

PARSE = Parser("sharegpt")
ANSWER = {"from": "gpt", "value": "yo"}


def parsed(*turns: Any, **keys: Any) -> Conversation:
    found = PARSE(json.dumps({"conversations": list(turns), **keys}).encode())
    assert isinstance(found, Conversation)
    return found


@pytest.mark.parametrize(
    ("speaker", "role"),
    [("human", "user"), ("user", "user"), ("gpt", "assistant"), ("assistant", "assistant"),
     ("model", "assistant"), ("system", "system"), ("tool", "tool"), ("observation", "tool"),
     ("function_response", "tool")],
)  # fmt: skip
def test_who_speaks(speaker: str, role: str) -> None:
    message, _ = parsed({"from": speaker, "value": "x"}, ANSWER).messages
    assert (message.role, message.content, message.extra) == (role, "x", {})


def test_the_system_prompt_beside_the_turns() -> None:
    found = parsed({"from": "human", "value": "hi"}, ANSWER, system="Be brief.")
    assert [(m.role, m.content) for m in found.messages] == [
        ("system", "Be brief."), ("user", "hi"), ("assistant", "yo"),
    ]  # fmt: skip
    assert len(parsed(ANSWER, system="").messages) == len(parsed(ANSWER, system=None).messages) == 1


@pytest.mark.parametrize("several", [False, True])
def test_a_call_of_a_function(several: bool) -> None:
    call = {"name": "f", "arguments": {"n": 3}}
    value = json.dumps([call, call] if several else call)
    tools = json.dumps([{"name": "f"}])
    found = parsed(
        {"from": "human", "value": "?"}, {"from": "function_call", "value": value},
        {"from": "observation", "value": "3"}, ANSWER, tools=tools,
    )  # fmt: skip
    expected = {"type": "function", "function": call}
    assert found.messages[1].role == "assistant"
    assert found.messages[1].content == ""
    assert found.messages[1].extra == {"tool_calls": [expected] * (1 + several)}
    assert found.tools == ({"name": "f"},)


def test_roles_in_place_of_speakers() -> None:
    found = parsed({"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"})
    assert [(m.role, m.content) for m in found.messages] == [("user", "hi"), ("assistant", "yo")]


def turns(*entries: Any) -> dict[str, Any]:
    return {"conversations": [*entries, ANSWER]}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, "no conversations key"),
        ({"conversations": None}, "conversations is null"),
        ({"conversations": "hi"}, "conversations is not a list"),
        ({"conversations": []}, "conversations is empty"),
        (turns("hi"), "a turn is not an object"),
        (turns({"from": "bing", "value": "hi"}), "unknown speaker"),
        (turns({"value": "hi"}), "unknown speaker"),
        (turns({"from": ["human"], "value": "hi"}), "unknown speaker"),
        (turns({"from": "human"}), "value is not a string"),
        (turns({"from": "human", "value": None}), "value is not a string"),
        (turns({"from": "human", "value": "\ud800"}), "text is not valid Unicode"),
        (turns({"from": "function_call", "value": "f(1)"}), "a function call is not JSON"),
        (turns({"from": "function_call", "value": "[]"}), "a function call names no function"),
        (turns({"from": "function_call", "value": "{}"}), "a function call names no function"),
        (turns({"from": "function_call", "value": "3"}), "a function call names no function"),
        (turns({"from": "function_call", "value": '{"name": "\\ud800"}'}),
         "text is not valid Unicode"),
        ({"conversations": [{"from": "human", "value": "hi"}]}, "no assistant turn"),
        ({**turns(), "system": 3}, "system is not a string"),
        ({**turns({"from": "system", "value": "a"}), "system": "b"}, "two system prompts"),
    ],
)  # fmt: skip
def test_each_reason(record: Any, expected: str) -> None:
    with pytest.raises(BadRecord) as bad:
        PARSE(json.dumps(record).encode())
    assert bad.value.reason == expected
