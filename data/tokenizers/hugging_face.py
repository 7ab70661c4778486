"""Tokenizers of Hugging Face, with their chat templates.

For a conversation without special tokens in its texts the ids are those of ``transformers``:
``apply_chat_template(conversation, tokenize=True)``. So the template writes the token that begins a
text if one is to be there, and the tokenizer adds none: there is one, not two. There are two
differences. Special tokens in a text stay text (:mod:`data.tokenizers.special`). And where the last
answer is not followed by a special token, which is what would end it, the tokenizer's
``eos_token`` is added: a model trained without one would never stop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from data.conversation import Conversation
from data.errors import DataError
from data.targets import LossOn, Span, token_targets, wanted_turns
from data.tokenizers.answers import Answers
from data.tokenizers.base import Rendered, Unrenderable
from data.tokenizers.layout import MOST_TURNS, Frame, Layout, mark
from data.tokenizers.special import PRIVATE, SpecialTokens, renamed
from data.tokenizers.template import ChatTemplate, Tools, Turns

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


@dataclass(frozen=True, kw_only=True, eq=False)
class HuggingFaceTokenizer:
    """A tokenizer and the template that conversations are laid out with.

    Attributes:
        name: directory, hub id or GGUF file.
        backend: without the post-processor, which would trim the tokens' offsets.
        template: the tokenizer's own, or the user's.
        special: tokens that are structure.
        eos: the token that ends a text; None where there is none.
        pad_id: the padding token, or where there is none that which ends a text.
        vocab_size: one more than the largest id.
        write: writes the tokenizer's files, with this template as its own, into a directory.
    """

    name: str
    backend: Tokenizer
    template: ChatTemplate
    special: SpecialTokens
    eos: str | None
    pad_id: int
    vocab_size: int
    write: Callable[[str, ChatTemplate, Path], None]

    def render(self, conversation: Conversation, loss_on: LossOn) -> Rendered:
        """Lay a conversation out; what the targets are is said in :mod:`data.tokenizers.answers`.

        Raises:
            Unrenderable: the template refuses it, or rewrites a turn so that it cannot be told
                where the answer is.
        """
        turns = [message.to_template() for message in conversation.messages]
        text, tagged = self.template.render_tagged(turns, conversation.tools)
        layout, hides = self._layout(text, turns, conversation.tools)
        encoding = self._encode(text, layout, hides=hides)
        answers = self._answers(turns, conversation.tools, text, layout)
        if loss_on is LossOn.ALL:
            spans = [(0, len(text))]
        else:
            spans = self._spans(conversation, answers, tagged, loss_on)
        end = self._missing_end(answers)
        trained_end = bool(end and spans) and layout.content_after(spans[-1][1]) == len(text)
        if trained_end:
            spans[-1] = (spans[-1][0], len(text))
        others = () if loss_on is LossOn.ALL else _others(turns, layout)
        targets = token_targets(encoding.offsets, spans, others)
        targets = np.append(targets, np.full(len(end), trained_end))
        targets[:1] = False
        return Rendered(
            tokens=np.array(encoding.ids + end, dtype=np.int32),
            targets=targets,
            rewritten=layout.leaves_out(turns, text),
        )

    def decode(self, ids: npt.ArrayLike) -> str:
        """Return readable text; ids outside the vocabulary are left out."""
        return self.backend.decode(np.asarray(ids).tolist(), skip_special_tokens=False)

    def token_text(self, ids: npt.ArrayLike) -> list[str]:
        """Return the text of each token, a character's at its last token."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(self.backend, i) or "" for i in np.asarray(ids).tolist()]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Of the tokens that are structure."""
        return frozenset(map(self._id, self.special.tokens))

    def save(self, directory: Path) -> None:
        """Write the tokenizer's files, with the template trained with as its own.

        Raises:
            DataError: what it was loaded from is gone, or the directory cannot be written.
        """
        try:
            self.write(self.name, self.template, directory)
        except OSError as error:
            raise DataError(
                f"{directory}: cannot be written ({error.strerror or error}); the tokenizer needs "
                "a directory that can be, and room in it"
            ) from error

    @cached_property
    def frame(self) -> Frame | None:
        """What the template writes around an answer."""
        return Frame.of(self.template)

    @cached_property
    def _renamed(self) -> Tokenizer:
        return renamed(self.backend, self.special.stand_ins)

    def _id(self, token: str) -> int:
        found = self.backend.token_to_id(token)
        assert found is not None, token
        return found

    def _layout(self, text: str, turns: Turns, tools: Tools) -> tuple[Layout, bool]:
        """Where contents are in the text, and whether any text holds special tokens."""
        hides = self.special.in_json([turns, tools])
        if hides:
            turns, tools = self.special.hide(turns), self.special.hide(tools)
        if len(turns) <= MOST_TURNS and not PRIVATE.search(text):
            layout = Layout.read(self.template.render(mark(turns), tools))
            if (self.special.reveal(layout.text) if hides else layout.text) == text:
                return layout, hides
        # The template reads contents, or they hold private characters: their borders stay unknown.
        hidden = self.template.render(turns, tools) if hides else text
        if hides and self.special.reveal(hidden) != text:
            raise Unrenderable("special tokens in a text cannot be told from the chat template's")
        return Layout(text=hidden), hides

    def _encode(self, text: str, layout: Layout, *, hides: bool) -> Encoding:
        try:
            text.encode()
        except UnicodeEncodeError:  # of the template's making: records are checked
            raise Unrenderable("text is not valid Unicode") from None
        if not hides:
            return self.backend.encode(text, add_special_tokens=False)
        return self._renamed.encode(self.special.swap(layout.text), add_special_tokens=False)

    def _answers(self, turns: Turns, tools: Tools, text: str, layout: Layout) -> Answers:
        return Answers(
            turns=turns,
            tools=tools,
            template=self.template,
            text=text,
            layout=layout,
            frame=self.frame,
            special=self.special,
            eos=self.eos,
        )

    def _spans(
        self, conversation: Conversation, answers: Answers, tagged: list[Span], loss_on: LossOn
    ) -> list[Span]:
        """The characters that are to be predicted."""
        if self.template.has_tags(conversation.tools):
            return answers.tagged(tagged, last_only=loss_on is LossOn.LAST)
        spans = [answers.find(turn) for turn in wanted_turns(conversation, loss_on)]
        found = [span for span in spans if span is not None]
        if len(found) < len(spans) or any(one[1] > next[0] for one, next in pairwise(found)):
            raise Unrenderable("the chat template rewrites an answer beyond recognition")
        return found

    def _missing_end(self, answers: Answers) -> list[int]:
        """The token to be added behind the last answer, if there is one and nothing ends it."""
        last = len(answers.turns) - 1
        if self.eos is None or answers.turns[last]["role"] != "assistant":
            return []
        # Its header may be a special token, and is no end.
        said = answers.layout.text[answers.start(last) or 0 :]
        return [] if self.special.ends(said.rstrip()) else [self._id(self.eos)]


def _others(turns: Turns, layout: Layout) -> list[Span]:
    """The characters of contents that are not the assistant's."""
    return [span for turn, span in layout.contents() if turns[turn]["role"] != "assistant"]
