"""A prompt and its completion, as text or as messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from data.conversation import BadRecord, Conversation
from data.formats import Parser

PARSE = Parser("prompt_completion")
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}


@pytest.mark.parametrize(
    ("prompt", "completion"),
    [("hi", "yo"), ([USER], [ANSWER]), ([USER], "yo"), ("hi", [ANSWER])],
)
def test_text_and_messages_say_the_same(prompt: Any, completion: Any) -> None:
    found = PARSE(json.dumps({"prompt": prompt, "completion": completion}).encode())
    assert isinstance(found, Conversation)
    assert [(m.role, m.content) for m in found.messages] == [("user", "hi"), ("assistant", "yo")]


def test_messages_keep_their_tools() -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
    record = {"prompt": [USER], "completion": [call], "tools": [{"name": "f"}]}
    found = PARSE(json.dumps(record).encode())
    assert isinstance(found, Conversation)
    assert found.messages[1].extra == {"tool_calls": [{"function": {"name": "f"}}]}
    assert found.tools == ({"name": "f"},)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"completion": "yo"}, "no prompt key"),
        ({"prompt": "hi"}, "no completion key"),
        ({"prompt": None, "completion": "yo"}, "prompt is neither text nor messages"),
        ({"prompt": "hi", "completion": 3}, "completion is neither text nor messages"),
        ({"prompt": "hi", "completion": []}, "completion is empty"),
        ({"prompt": ["hi"], "completion": "yo"}, "a message is not an object"),
        ({"prompt": "hi", "completion": [USER]}, "no assistant turn"),
        ({"prompt": "hi", "completion": "\ud800"}, "text is not valid Unicode"),
    ],
)
def test_each_reason(record: Any, expected: str) -> None:
    with pytest.raises(BadRecord) as bad:
        PARSE(json.dumps(record).encode())
    assert bad.value.reason == expected
