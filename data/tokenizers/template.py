"""Chat templates: from turns to one text, in the sandbox of ``transformers``.

A template comes with a model from wherever the model comes from, so it is not trusted: it runs in
Jinja's immutable sandbox, sees plain JSON values alone, and cannot reach attributes of Python.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data.errors import DataError
from data.files.places import expanded
from data.targets import Span
from data.tokenizers.base import Unrenderable

type Turns = Sequence[Mapping[str, Any]]
type Tools = Sequence[Mapping[str, Any]]

REFUSED = "the chat template refuses the conversation"
_TAGS = re.compile(r"\{%-?\s*generation\s*-?%\}")
# What a template is called with in any case, and what would change how it is called.
_TAKEN = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "conversations", "chat_template"}
    | {"return_assistant_tokens_mask", "continue_final_message"}
)


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A Jinja template, and its variables besides the conversation.

    Attributes:
        sources: the template by name: ``default``, and ``tool_use`` where there is one for
            conversations with tools.
        variables: the special tokens by their names in ``transformers``, and the user's own.
        key: the setting that chose the template, for messages.
    """

    sources: Mapping[str, str]
    variables: Mapping[str, Any]
    key: str

    def source(self, tools: Tools) -> str:
        """The template for a conversation with these tools."""
        if tools and "tool_use" in self.sources:
            return self.sources["tool_use"]
        return self.sources["default"]

    def has_tags(self, tools: Tools) -> bool:
        """Whether the template says itself, by ``{% generation %}``, what the assistant says."""
        return _TAGS.search(self.source(tools)) is not None

    def render(self, turns: Turns, tools: Tools = (), *, prompt: bool = False) -> str:
        """The text of a conversation.

        Args:
            turns: as :meth:`data.conversation.Message.to_template` gives them.
            tools: JSON schemas.
            prompt: end with what opens an answer.

        Raises:
            Unrenderable: the template fails on it, on purpose or not.
            DataError: the template does what no template may.
        """
        return self._render(turns, tools, prompt=prompt, spans=False)[0]

    def render_tagged(self, turns: Turns, tools: Tools = ()) -> tuple[str, list[Span]]:
        """The text, and the characters ``[start, end)`` in each pair of generation tags.

        Raises:
            Unrenderable: as :meth:`render` does.
            DataError: as :meth:`render` does.
        """
        return self._render(turns, tools, prompt=False, spans=self.has_tags(tools))

    def _render(
        self, turns: Turns, tools: Tools, *, prompt: bool, spans: bool
    ) -> tuple[str, list[Span]]:
        from jinja2.exceptions import SecurityError, TemplateSyntaxError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered: Any = render_jinja_template(  # typed as a string, which it is not
                conversations=[[_without_nulls(turn) for turn in turns]],
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self.source(tools),
                return_assistant_tokens_mask=spans,
                add_generation_prompt=prompt,
                **self.variables,
            )
        except SecurityError as error:
            raise DataError(
                f"{self.key}: the chat template does what is forbidden to templates ({error}); "
                "set data.chat_template to a file with another one"
            ) from error
        except TemplateSyntaxError as error:
            raise DataError(
                f"{self.key}: the chat template is no valid Jinja, line {error.lineno}: "
                f"{error.message}; mend it, or set data.chat_template to a file with another one"
            ) from error
        except Exception as error:
            # A template is a program: on turns it does not expect it may raise anything.
            raise Unrenderable(REFUSED, str(error)) from error
        texts, tagged = rendered
        return texts[0], [(start, end) for start, end in tagged[0]] if spans else []


def _without_nulls(turn: Mapping[str, Any]) -> dict[str, Any]:
    """As ``apply_chat_template`` does: many templates would write the null out."""
    return {key: value for key, value in turn.items() if value is not None}


def read_template(path: str) -> str:
    """The user's own template.

    Raises:
        DataError: there is no such file, or it cannot be read.
    """
    try:
        return expanded(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else "it is not UTF-8"
        raise DataError(
            f"data.chat_template={path}: cannot be read ({why}); set it to a Jinja file, or to "
            "null for the tokenizer's own template"
        ) from error


def check_args(args: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    """Refuse variables of the user's that are set already, or that no template reads.

    Raises:
        DataError: naming the variable.
    """
    for name, value in args.items():
        setting = f"data.template_args.{name}={json.dumps(value)}"
        if name in _TAKEN:
            raise DataError(f"{setting}: is set for each conversation; remove it")
        if not any(re.search(rf"\b{re.escape(name)}\b", source) for source in sources.values()):
            raise DataError(
                f"{setting}: the chat template reads no such variable; remove it, or correct its "
                "name"
            )
