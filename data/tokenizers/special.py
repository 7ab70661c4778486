r"""Special tokens that a text only talks about.

A tokenizer looks for its special tokens everywhere in a text, so ``<|im_end|>`` in what a user has
written would end the turn. Here the two are told apart: before the template sees the texts of a
conversation, each special token in them is replaced by a stand-in of as many private characters, so
that what is left in the rendered text is the template's. And for the text to be tokenised there is
a copy of the tokenizer that knows its special tokens by those stand-ins only.

    rendered   <|im_start|>user\nSay <|im_end|><|im_end|>\n
    tokenised  ############user\nSay <|im_end|>##########\n       by the copy: # are stand-ins

Characters keep their places, so the offsets of tokens are those in the text. A conversation without
special tokens in its texts, nearly every one, is tokenised as it is, by the tokenizer itself.

Only what the tokenizer declares to be special is structure. Other added tokens, ``<think>`` or
``<tool_call>`` say, are the words of a model, and a text that holds them gets their ids, as
``apply_chat_template`` would do. Markers that are no tokens at all, ``[INST]`` in the first models
of Mistral, are written by the template as plain text: there a user's are the same, for the model
too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from data.targets import Span

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_FIRST = 0x100000  # the second plane of private characters; the first one marks contents
PRIVATE = re.compile("[\U000f0000-\U0010ffff]")


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of a tokenizer.

    Attributes:
        tokens: their texts, none empty.
    """

    tokens: tuple[str, ...]

    @cached_property
    def stand_ins(self) -> dict[str, str]:
        """For each token as many private characters as it has, all the same."""
        return {t: chr(_FIRST + i) * len(t) for i, t in enumerate(self.tokens)}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.tokens, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def in_json(self, value: Any) -> bool:
        """Whether a string in a JSON value holds a special token."""
        if isinstance(value, str):
            return self._pattern.search(value) is not None
        if isinstance(value, dict):
            return any(self.in_json(part) for item in value.items() for part in item)
        if isinstance(value, list | tuple):
            return any(map(self.in_json, value))
        return False

    def hide(self, value: Any) -> Any:
        """A JSON value with stand-ins for the special tokens in its strings."""
        if isinstance(value, str):
            return self._pattern.sub(lambda found: self.stand_ins[found[0]], value)
        if isinstance(value, dict):
            return {self.hide(k): self.hide(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(part) for part in value]
        return value

    def reveal(self, hidden: str) -> str:
        """The text that ``hidden`` was made of."""
        for token, stand_in in self.stand_ins.items():
            if stand_in[0] in hidden:
                hidden = hidden.replace(stand_in, token)
        return hidden

    def swap(self, hidden: str) -> str:
        """From rendered to tokenised, as the module shows: structure in stand-ins, texts plain."""
        parts, at = [], 0
        for found in self._pattern.finditer(hidden):
            parts += [self.reveal(hidden[at : found.start()]), self.stand_ins[found[0]]]
            at = found.end()
        return "".join([*parts, self.reveal(hidden[at:])])

    def leading(self, text: str) -> Span | None:
        """Where the special token is that ``text`` begins with, spaces aside."""
        space = len(text) - len(text.lstrip())
        found = self._pattern.match(text, space)
        return None if found is None else found.span()

    def ends(self, text: str) -> bool:
        """Whether ``text`` ends with a special token."""
        return text.endswith(self.tokens)


def renamed(backend: Tokenizer, names: dict[str, str]) -> Tokenizer:
    """A copy of a tokenizer, with other names for some of its tokens and the same ids."""
    from tokenizers import Tokenizer

    spec = json.loads(backend.to_str())
    model = spec["model"]
    for token in spec["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(k, k): v for k, v in model["vocab"].items()}
    else:  # Unigram's, with scores
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [m for m in model["merges"] if not _is_about(m, names)]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    copy = Tokenizer.from_str(json.dumps(spec))
    for old, new in names.items():
        assert copy.token_to_id(new) == backend.token_to_id(old), f"{old!r} has another id"
    return copy


def _is_about(merge: str | list[str], names: Iterable[str]) -> bool:
    """Whether a merge takes or makes a renamed token: one that a text must never give."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    return any(part in names for part in (*parts, "".join(parts)))
