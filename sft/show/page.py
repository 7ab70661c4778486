"""Samples and failures on a terminal, or as plain text with brackets around targets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Literal

from rich.console import Console
from rich.text import Text

from data.sample import Sample
from data.tokenizers import Tokenizer
from sft.show.samples import Failure

type Kind = Literal["target", "context", "special"]

_STYLES: dict[Kind, str] = {"target": "bold green", "context": "dim", "special": "magenta"}
_MOST_OF_A_LINE = 300  # characters of a record that is not used
# A terminal obeys control characters; the pictures of them it shows.
_PICTURES = {i: chr(0x2400 + i) for i in range(32) if chr(i) not in "\n\t"} | {127: "\u2421"}


class Page:
    """Where it is shown.

    Attributes:
        console: of the terminal.
        plain: no colours; targets stand between ⟦ and ⟧.
    """

    def __init__(self, console: Console, *, plain: bool) -> None:
        self.console = console
        self.plain = plain

    def legend(self, about: str) -> None:
        """Say what the marks mean."""
        if self.plain:
            self._say(f"{about}; \u27e6to be predicted\u27e7")
            return
        text = Text(f"{about}; ")
        text.append("to be predicted", _STYLES["target"])
        text.append(", ").append("given", _STYLES["context"])
        text.append(", ").append("special tokens", _STYLES["special"])
        self._say(text)

    def sample(self, sample: Sample, tokenizer: Tokenizer) -> None:
        """Show all tokens of one sample."""
        notes = [f"{len(sample):,} tokens", share(sample.loss_tokens, len(sample))]
        if sample.truncated_tokens:
            notes.append(f"{sample.truncated_tokens:,} more are cut off")
        if sample.rewritten:
            notes.append("the chat template has left out some of what it says")
        self._title(sample.source_id, ", ".join(notes))
        if self.plain:
            parts = _by_target(sample, tokenizer)
            self._say(
                "".join(f"\u27e6{text}\u27e7" if is_target else text for is_target, text in parts)
            )
            return
        shown = Text()
        for kind, text in _by_kind(sample, tokenizer):
            shown.append(text, _STYLES[kind])
        self._say(shown)

    def failure(self, failure: Failure) -> None:
        """Show why a conversation is dropped, and how it begins."""
        dropped = failure.dropped
        length = f", {dropped.tokens:,} tokens" if dropped.tokens else ""
        self._title(dropped.source_id, f"dropped: {dropped.reason}{length}")
        if failure.detail:
            self._say(_visible(failure.detail))
        line = failure.line
        more = len(line) - _MOST_OF_A_LINE
        self._say(_visible(line[:_MOST_OF_A_LINE]) + (f" ... {more:,} more" if more > 0 else ""))

    def say(self, text: str) -> None:
        """A line of its own, after an empty one."""
        self._say("")
        self._say(text)

    def _title(self, name: str, about: str) -> None:
        self._say("")
        self._say(f"--- {name}: {about}" if self.plain else Text(f"{name}: {about}", "bold"))

    def _say(self, text: str | Text) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def share(targets: int, tokens: int) -> str:
    """How many of the tokens are targets, for people."""
    return f"{targets:,} of them to be predicted ({targets / max(tokens, 1):.0%})"


def _by_target(sample: Sample, tokenizer: Tokenizer) -> Iterator[tuple[bool, str]]:
    texts = tokenizer.token_text(sample.tokens)
    tokens = zip(sample.targets.tolist(), texts, strict=True)
    for is_target, run in groupby(tokens, key=lambda token: token[0]):
        yield is_target, _visible("".join(text for _, text in run))


def _by_kind(sample: Sample, tokenizer: Tokenizer) -> Iterator[tuple[Kind, str]]:
    special = tokenizer.special_ids
    for i, text in enumerate(tokenizer.token_text(sample.tokens)):
        kind: Kind = "special" if int(sample.tokens[i]) in special else "context"
        yield "target" if sample.targets[i] else kind, _visible(text)


def _visible(text: str) -> str:
    return text.translate(_PICTURES)
