"""Where a chat template puts contents, and what it writes around them.

A private character at each border of each content shows where the content is in the rendered text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from data.targets import Span
from data.tokenizers.base import Unrenderable
from data.tokenizers.template import ChatTemplate, Turns

_FIRST = 0xF0000  # content i begins at character 2i and ends at 2i + 1 of the plane
_BORDER = re.compile("[\U000f0000-\U000fffff]")
MOST_TURNS = 32_000


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What a template writes around a short answer to a short question.

    Attributes:
        opening: from the end of the question to the start of the answer.
        header: the end of ``opening`` that is written only when an answer is asked for.
        closing: from the end of the answer to the end of the text.
    """

    opening: str
    header: str
    closing: str

    @classmethod
    def of(cls, template: ChatTemplate) -> Frame | None:
        """Try it; None where the template wants another conversation, or does the unexpected."""
        question, answer = "\U000f0000", "\U000f0001"
        turns = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
        try:
            plain = template.render(turns[:1])
            asked = template.render(turns[:1], prompt=True)
            answered = template.render(turns)
        except Unrenderable:
            return None
        once = plain.count(question) == answered.count(answer) == 1
        if not once or not asked.startswith(plain):
            return None
        return cls(
            opening=asked.partition(question)[2],
            header=asked.removeprefix(plain),
            closing=answered.partition(answer)[2],
        )


def mark(turns: Turns) -> list[dict[str, Any]]:
    """The turns with a private character at both borders of each content that is not blank.

    They stand inside of spaces at its ends, so that templates which trim contents still do.
    """
    marked = []
    for i, turn in enumerate(turns):
        content = turn["content"]
        if core := content.strip():
            before, _, after = content.partition(core)
            inside = f"{before}{chr(_FIRST + 2 * i)}{core}{chr(_FIRST + 2 * i + 1)}{after}"
            turn = {**turn, "content": inside}
        marked.append(dict(turn))
    return marked


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A rendered text, and where the contents are in it.

    Attributes:
        text: with stand-ins for the special tokens that contents hold.
        borders: number of the border, position in ``text``; in the order of the text. Empty where
            the template has written another text around marked contents.
    """

    text: str
    borders: tuple[tuple[int, int], ...] = ()

    @classmethod
    def read(cls, raw: str) -> Layout:
        """From what the template has made of marked turns."""
        found = [(ord(m[0]) - _FIRST, m.start()) for m in _BORDER.finditer(raw)]
        borders = tuple((number, at - i) for i, (number, at) in enumerate(found))
        return cls(text=_BORDER.sub("", raw), borders=borders)

    @cached_property
    def places(self) -> dict[int, int]:
        """Of each border that occurs once its place among ``borders``."""
        count = Counter(number for number, _ in self.borders)
        return {n: place for place, (n, _) in enumerate(self.borders) if count[n] == 1}

    def contents(self) -> Iterator[tuple[int, Span]]:
        """Turn and characters of each content without the blanks at its ends; twice if it is."""
        begun: dict[int, int] = {}
        for number, at in self.borders:
            turn, is_end = divmod(number, 2)
            if not is_end:
                begun[turn] = at
            elif turn in begun:
                yield turn, (begun.pop(turn), at)

    def leaves_out(self, turns: Turns, text: str) -> bool:
        """Whether the template has left out a content or part of one.

        Args:
            turns: that were marked.
            text: this one, with special tokens where stand-ins are.
        """
        written = {number for number, _ in self.borders}
        for i, turn in enumerate(turns):
            content = turn["content"].strip()
            whole = {2 * i, 2 * i + 1} <= written or content in text[slice(*self._around(i))]
            if content and not whole:
                return True
        return False

    def _around(self, turn: int) -> Span:
        """Where a content is if it has kept its end only; else it may be anywhere."""
        end = self.places.get(2 * turn + 1)
        if end is None:
            return 0, len(self.text)
        return self.borders[end - 1][1] if end else 0, self.borders[end][1]

    def content_after(self, position: int) -> int:
        """Where the next content begins, or the end of the text."""
        place = bisect_left(self._starts, position)
        return self._starts[place] if place < len(self._starts) else len(self.text)

    @cached_property
    def _starts(self) -> list[int]:
        return [at for number, at in self.borders if number % 2 == 0]
