"""Which tokens are to be predicted: from characters to tokens, and what templates do to answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.conversation import Conversation, Message
from data.targets import LossOn, token_targets
from data.tokenizers import Tokenizer, Unrenderable, load_tokenizer
from tests.data import toys

type Turns = list[tuple[str, str]]

TWO: Turns = [("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b")]


def chat(*turns: tuple[str, str]) -> Conversation:
    return Conversation(messages=tuple(Message(role=r, content=c) for r, c in turns))


def predicted(
    tokenizer: Tokenizer, conversation: Conversation, loss_on: LossOn = LossOn.ASSISTANT
) -> list[str]:
    """The text of each run of targets."""
    rendered = tokenizer.render(conversation, loss_on)
    edges = np.flatnonzero(np.diff(np.r_[0, rendered.targets, 0]))
    return [tokenizer.decode(rendered.tokens[a:b]) for a, b in edges.reshape(-1, 2)]


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Tokenizer]:
    """Save a toy tokenizer and load it, with arguments for its template."""

    def make(template: str, template_args: dict[str, Any] | None = None, **options: Any) -> Any:
        path = toys.save_tokenizer(tmp_path / "tok", template, **options)
        return load_tokenizer(path, template_args=template_args)

    return make


def test_a_token_with_a_character_of_a_span_is_a_target() -> None:
    offsets = [(0, 3), (3, 5), (5, 5), (5, 6), (6, 9)]
    cases: list[tuple[list[tuple[int, int]], list[int]]] = [
        ([(3, 6)], [1, 2, 3]),
        ([(4, 5)], [1]),  # part of a token is enough
        ([(2, 4)], [0, 1]),
        ([(5, 6)], [2, 3]),  # one of no character goes with what follows
        ([(3, 5)], [1]),
        ([(5, 5)], []),
        ([(0, 1), (6, 9)], [0, 4]),
        ([], []),
    ]
    for spans, targets in cases:
        assert np.flatnonzero(token_targets(offsets, spans, [])).tolist() == targets
    assert token_targets([], [(0, 1)], []).tolist() == []


def test_a_token_that_holds_what_another_said_is_none() -> None:
    offsets = [(0, 3), (3, 5), (5, 6)]
    assert token_targets(offsets, [(0, 4)], [(4, 6)]).tolist() == [True, False, False]


def test_all_tokens_of_an_answer_and_its_end(load: Callable[..., Tokenizer]) -> None:
    tokenizer = load(toys.CHATML)
    rendered = tokenizer.render(chat(("user", "q"), ("assistant", "zxzx")), LossOn.ASSISTANT)
    texts = tokenizer.token_text(rendered.tokens)
    at = np.flatnonzero(rendered.targets)
    assert [texts[i] for i in at] == ["z", "x", "z", "x", "<|im_end|>"]
    header = [texts[i] for i in range(at[0])]
    assert "".join(header).endswith("<|im_start|>assistant\n")
    assert texts[at[-1] + 1] == "\n"  # no target, like all of the header


@pytest.mark.parametrize(
    ("template", "answers"),
    [
        (toys.CHATML, ["a<|im_end|>", "b<|im_end|>"]),
        (toys.CHATML_SYSTEM, ["a<|im_end|>", "b<|im_end|>"]),
        (toys.LLAMA3, ["a<|eot_id|>", "b<|eot_id|>"]),
        (toys.MISTRAL, [" a</s>", " b</s>"]),
        (toys.GEMMA, ["a<end_of_turn>", "b<end_of_turn>"]),
        (toys.TAGGED, ["a<|im_end|>", "b<|im_end|>"]),
        # The end is missing: it is there once, and the model learns to come to it.
        (toys.BARE, ["a", "b\n</s>"]),
    ],
)
def test_answers_and_ends_by_template(
    load: Callable[..., Tokenizer], template: str, answers: list[str]
) -> None:
    tokenizer = load(template)
    assert predicted(tokenizer, chat(*TWO)) == answers
    assert predicted(tokenizer, chat(*TWO), LossOn.LAST) == answers[1:]
    # An answer in the middle has no other end than the template's.
    followed = chat(*TWO, ("user", "s"))
    assert predicted(tokenizer, followed)[0] == answers[0]
    assert tokenizer.decode(tokenizer.render(chat(*TWO), LossOn.LAST).tokens).endswith(
        answers[1]
        + ("\n" if template in (toys.CHATML, toys.CHATML_SYSTEM, toys.TAGGED, toys.GEMMA) else "")
    )


def test_no_end_is_added_where_the_user_has_the_last_word(load: Callable[..., Tokenizer]) -> None:
    tokenizer = load(toys.BARE)
    rendered = tokenizer.render(chat(*TWO, ("user", "s")), LossOn.ALL)
    assert tokenizer.decode(rendered.tokens) == (
        "USER:\nq\nASSISTANT:\na\nUSER:\nr\nASSISTANT:\nb\nUSER:\ns\n"
    )
    assert predicted(tokenizer, chat(*TWO, ("user", "s"))) == ["a", "b"]


def test_a_last_answer_that_only_mentions_an_end_gets_one(load: Callable[..., Tokenizer]) -> None:
    tokenizer = load(toys.BARE)
    assert predicted(tokenizer, chat(("user", "q"), ("assistant", "</s>"))) == ["</s>\n</s>"]
    rendered = tokenizer.render(chat(("user", "q"), ("assistant", "</s>")), LossOn.LAST)
    assert np.count_nonzero(np.isin(rendered.tokens, list(tokenizer.special_ids))) == 1


def test_a_header_that_is_a_special_token_ends_no_answer(load: Callable[..., Tokenizer]) -> None:
    template = (
        "{% for m in messages %}{{ '[INST]' if m.role == 'user' else '[/INST]' }}"
        "{{ '\n' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[/INST]\n' }}{% endif %}"
    )
    tokenizer = load(template)
    assert predicted(tokenizer, chat(*TWO)) == ["a", "b</s>"]
    blank = chat(("user", "q"), ("assistant", ""))
    assert predicted(tokenizer, blank) == ["</s>"]
    every = tokenizer.render(blank, LossOn.ALL)
    assert tokenizer.decode(every.tokens) == "[INST]\nq[/INST]\n</s>"


def test_every_token_but_the_first(load: Callable[..., Tokenizer]) -> None:
    rendered = load(toys.LLAMA3).render(chat(*TWO), LossOn.ALL)
    assert rendered.targets.tolist() == [False] + [True] * (rendered.tokens.size - 1)


def test_thinking_that_the_template_removes_is_no_target(load: Callable[..., Tokenizer]) -> None:
    tokenizer = load(toys.THINKING)
    thought = "<think>\nhm\n</think>\n\n"
    turns = [
        ("user", "q"),
        ("assistant", f"{thought}a"),
        ("user", "r"),
        ("assistant", f"{thought}b"),
    ]
    rendered = tokenizer.render(chat(*turns), LossOn.ASSISTANT)
    assert predicted(tokenizer, chat(*turns)) == ["a<|im_end|>", f"{thought}b<|im_end|>"]
    assert rendered.rewritten
    # Without an earlier turn nothing is lost; and what the template adds, the model has to write.
    assert not tokenizer.render(chat(*turns[:2]), LossOn.ASSISTANT).rewritten
    assert predicted(tokenizer, chat(*turns[:2])) == [f"{thought}a<|im_end|>"]
    assert predicted(tokenizer, chat(*TWO)) == ["a<|im_end|>", "<think>\n\n</think>\n\nb<|im_end|>"]


def test_template_arguments_move_the_start_of_an_answer(load: Callable[..., Tokenizer]) -> None:
    tokenizer = load(toys.THINKING, {"enable_thinking": False})
    assert predicted(tokenizer, chat(*TWO)) == ["a<|im_end|>", "b<|im_end|>"]


def test_an_answer_that_the_template_hides_drops_the_conversation(
    load: Callable[..., Tokenizer],
) -> None:
    first_only = (
        "{% for m in messages[-2:] %}{{ m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}"
    )
    tokenizer = load(first_only)
    with pytest.raises(Unrenderable, match="rewrites an answer beyond recognition"):
        tokenizer.render(chat(*TWO), LossOn.ASSISTANT)
    assert predicted(tokenizer, chat(*TWO), LossOn.LAST) == ["b<|im_end|>"]
    assert tokenizer.render(chat(*TWO), LossOn.LAST).rewritten


def test_a_template_that_refuses_gives_one_reason_and_says_why(
    load: Callable[..., Tokenizer],
) -> None:
    tokenizer = load(toys.GEMMA)
    with pytest.raises(Unrenderable) as refused:
        tokenizer.render(chat(("system", "s"), *TWO), LossOn.ASSISTANT)
    assert refused.value.reason == "the chat template refuses the conversation"
    assert refused.value.detail == "System role not supported"
    twice = chat(("user", "q"), ("user", "r"), ("assistant", "a"))
    with pytest.raises(Unrenderable, match="refuses"):
        load(toys.MISTRAL).render(twice, LossOn.ASSISTANT)


def test_generation_tags_say_what_is_learned(load: Callable[..., Tokenizer]) -> None:
    only_last = toys.TAGGED.replace(
        "message['role'] == 'assistant'", "message['role'] == 'assistant' and loop.last"
    )
    assert predicted(load(only_last), chat(*TWO)) == ["b<|im_end|>"]
    assert predicted(load(only_last), chat(*TWO, ("user", "s"))) == []


@pytest.mark.parametrize(
    "tagged",
    [
        "{% generation %}{{ message['content'] }}{% endgeneration %}{{ '<|im_end|>' }}",
        "{% generation %}{{ message['content'] + '<|im_end|>\n' }}{% endgeneration %}",
    ],
)
def test_generation_tags_are_mended(load: Callable[..., Tokenizer], tagged: str) -> None:
    """Around the content alone the model would never stop; a newline behind the end is no text."""
    right = "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    assert right in toys.TAGGED
    assert predicted(load(toys.TAGGED.replace(right, tagged)), chat(*TWO)) == [
        "a<|im_end|>",
        "b<|im_end|>",
    ]


def test_generation_tags_around_a_header_leave_it_out(load: Callable[..., Tokenizer]) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "{{ '<|im_start|>assistant\n' + m.content + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endif %}"
        "{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    assert predicted(load(template), chat(*TWO)) == ["a<|im_end|>", "b<|im_end|>"]


def test_generation_tags_around_a_user_drop_the_conversation(
    load: Callable[..., Tokenizer],
) -> None:
    everything = "{% generation %}" + toys.CHATML + "{% endgeneration %}"
    with pytest.raises(Unrenderable, match=r"generation tags .* do not fit the turns"):
        load(everything).render(chat(*TWO), LossOn.ASSISTANT)


def test_calls_of_tools_are_targets(load: Callable[..., Tokenizer]) -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    conversation = Conversation(
        messages=(
            Message(role="user", content="1+1?"),
            Message(role="assistant", content="", extra={"tool_calls": [call]}),
            Message(role="tool", content="2"),
            Message(role="assistant", content="see", extra={"tool_calls": [call]}),
            Message(role="tool", content="3"),
            Message(role="assistant", content="2"),
        ),
        tools=({"name": "add"},),
    )
    said = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>'
    assert predicted(load(toys.TOOLS), conversation) == [said, f"see{said}", "2<|im_end|>"]


def test_a_merge_across_the_seam_is_a_target(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role[0] + ':' + m.content }}{% endfor %}" + (
        "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
    )
    path = toys.save_merging(tmp_path, template, [(":", "x"), ("x", "y")])
    tokenizer = load_tokenizer(path)
    rendered = tokenizer.render(chat(("user", "x"), ("assistant", "xy")), LossOn.ASSISTANT)
    assert tokenizer.token_text(rendered.tokens) == ["u", ":x", "a", ":x", "y", "</s>"]
    assert rendered.targets.tolist() == [False, False, False, True, True, True]


def test_a_merge_with_what_a_user_says_is_no_target(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    path = toys.save_merging(tmp_path, template, [("x", "y"), ("y", "z")])
    tokenizer = load_tokenizer(path)
    turns = [("user", "x"), ("assistant", "yay"), ("user", "z"), ("assistant", "b")]
    rendered = tokenizer.render(chat(*turns), LossOn.ASSISTANT)
    assert tokenizer.token_text(rendered.tokens) == ["xy", "a", "yz", "b", "</s>"]
    assert rendered.targets.tolist() == [False, True, False, True, True]


def test_long_conversations_take_time_in_proportion(
    load: Callable[..., Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    from jinja2 import Template

    tokenizer = load(toys.CHATML)
    render, rendered = Template.render, 0

    def counted(self: Template, **variables: Any) -> str:
        nonlocal rendered
        rendered += len(variables["messages"])
        return render(self, **variables)

    def turns_rendered(turns: Turns) -> int:
        nonlocal rendered
        rendered = 0
        tokenizer.render(chat(*turns), LossOn.ASSISTANT)
        return rendered

    monkeypatch.setattr(Template, "render", counted)
    turns_rendered(TWO)  # what is written around an answer is found once
    assert turns_rendered(TWO * 50) == 10 * turns_rendered(TWO * 5) > 0
