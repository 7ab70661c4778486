"""Where the answers are in what a chat template has written.

An answer is all that the template writes for a turn of the assistant after what it would ask the
model to go on from (``add_generation_prompt``): the content, calls of tools, the end token, but not
the newline that some write behind it. So it is what the model will have to write.

By definition it begins where ``messages[:i]`` rendered with the generation prompt ends and ends
where ``messages[:i + 1]`` rendered ends, if both are prefixes of the whole text. Rendering two
prefixes for each answer takes time that grows with the square of the turns, so that is the second
choice. The first is to render once more with a private character at each border of each content:
without them the text must be the same. Then the header in front of an answer and what closes it
stand right beside its content, and must be those that the template writes around a short answer. A
template that reads contents, to take the thinking out of earlier turns say, removes borders or
writes another text; either is noticed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from data.targets import Span
from data.tokenizers.base import Unrenderable
from data.tokenizers.layout import Frame, Layout
from data.tokenizers.special import SpecialTokens
from data.tokenizers.template import ChatTemplate, Tools, Turns


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Finds the answers of one conversation.

    Attributes:
        turns: of the conversation, as templates take them.
        tools: that were on offer.
        template: that has written ``text``.
        text: the conversation.
        layout: of the same length as ``text``.
        frame: of the template.
        special: the tokenizer's.
        eos: the token that ends a text; None where the tokenizer has none.
    """

    turns: Turns
    tools: Tools
    template: ChatTemplate
    text: str
    layout: Layout
    frame: Frame | None
    special: SpecialTokens
    eos: str | None

    def find(self, turn: int) -> Span | None:
        """The characters of an answer; None if the template has left no way to tell."""
        start, end = self.start(turn), self._end(turn)
        if start is None or end is None:
            return None
        if end < start:  # nothing was said, and blanks that the header ends with were cut off
            return (start, start) if not self.text[end:start].strip() else None
        return start, end

    def tagged(self, tagged: Iterable[Span], *, last_only: bool) -> list[Span]:
        """The characters in generation tags, mended: without headers, with end tokens.

        Args:
            tagged: the characters in each pair of tags.
            last_only: those of the last turn of the assistant.

        Raises:
            Unrenderable: they cut through an answer, or hold what another has said.
        """
        spans = [(start, self._tagged_end(start, end)) for start, end in tagged if start < end]
        starts = [start for start, _ in spans]
        said = bytearray(len(self.text))
        for start, end in spans:
            said[start:end] = b"\1" * (end - start)
        for turn, (start, end) in self.layout.contents():
            inside = said.count(1, start, end)
            if self.turns[turn]["role"] != "assistant":
                fits = not inside
            else:
                fits = inside in (0, end - start)
            if not fits:
                raise Unrenderable("the generation tags of the chat template do not fit the turns")
            if inside and (header := self._behind_header(self.layout.places.get(2 * turn))):
                at = bisect_right(starts, start) - 1
                spans[at] = (max(spans[at][0], header), spans[at][1])
        if not last_only:
            return spans
        last = max(i for i, turn in enumerate(self.turns) if turn["role"] == "assistant")
        begin = self.start(last)
        return spans[-1:] if begin is None else [s for s in spans if s[1] > begin]

    def start(self, turn: int) -> int | None:
        """Where an answer begins: behind its header."""
        place = self.layout.places.get(2 * turn)
        if (beside := self._behind_header(place)) is not None:
            return beside
        if (prefix := self._prefix(turn, prompt=True)) is not None:
            return len(prefix)
        if place is not None:
            return self.layout.borders[place][1]
        return self._behind_first_header(turn)

    def _closed(self, position: int, limit: int) -> int | None:
        """Where an answer ends if what stands behind its content is what closes the frame's.

        Args:
            position: behind the content.
            limit: where the next content begins.
        """
        if self.frame is None:
            return None
        gap, closing = self.layout.text[position:limit], self.frame.closing
        if gap.startswith(closing):
            return position + self._through_end(closing)
        token = self.special.leading(gap)
        if token is not None and closing.startswith(gap[: token[1]]):
            return position + token[1]
        return None

    def _tagged_end(self, start: int, end: int) -> int:
        said = self.layout.text[start:end].rstrip()
        if self.special.ends(said):
            return start + len(said)
        closed = self._closed(end, self.layout.content_after(end))
        return end if closed is None else closed

    def _through_end(self, closing: str) -> int:
        """How much of what is written behind a content belongs to the answer: its end token."""
        if self.eos and self.eos in closing:
            return closing.index(self.eos) + len(self.eos)
        return len(closing.rstrip())

    def _behind_header(self, place: int | None) -> int | None:
        """Where the header ends that stands between a content and the one before.

        Args:
            place: of the border where the content begins.
        """
        borders, frame = self.layout.borders, self.frame
        if place is None or frame is None:
            return None
        begin = borders[place - 1][1] if place else 0
        gap = self.layout.text[begin : borders[place][1]]
        if frame.header:
            at = gap.rfind(frame.header)
            return None if at < 0 else begin + at + len(frame.header)
        # Where the turn before is blank, the text between has what opens that one too.
        follows = place > 0 and borders[place - 1][0] == borders[place][0] - 1
        return begin + len(frame.opening) if follows and gap.startswith(frame.opening) else None

    def _behind_first_header(self, turn: int) -> int | None:
        """For a content that has lost its beginning: behind the header that follows the one before.

        Between that one and this one's end may also stand what the assistant said, but the header
        is the first of it.
        """
        end = self.layout.places.get(2 * turn + 1)
        if not end or self.frame is None or not self.frame.header:
            return None
        before, begin = self.layout.borders[end - 1]
        if before != 2 * turn - 1:
            return None
        at = self.layout.text.find(self.frame.header, begin, self.layout.borders[end][1])
        return None if at < 0 else at + len(self.frame.header)

    def _end(self, turn: int) -> int | None:
        place = self.layout.places.get(2 * turn + 1)
        behind = None
        if place is not None and not self.turns[turn].get("tool_calls"):
            borders = self.layout.borders
            behind = self._with_spaces(turn, borders[place][1])
            limit = borders[place + 1][1] if place + 1 < len(borders) else len(self.text)
            is_last = turn == len(self.turns) - 1
            if not is_last and (end := self._closed(behind, limit)) is not None:
                return end
        prefix = self._prefix(turn + 1, prompt=False)
        if prefix is None:
            return behind
        if behind is None:
            return len(prefix.rstrip())
        return behind + self._through_end(prefix[behind:])

    def _with_spaces(self, turn: int, position: int) -> int:
        """Behind the spaces that a content ends with, if the template has kept them."""
        content = self.turns[turn]["content"]
        spaces = content[len(content.rstrip()) :]
        return position + len(spaces) if self.text.startswith(spaces, position) else position

    def _prefix(self, turns: int, *, prompt: bool) -> str | None:
        """What the template writes for the first turns, if the whole text begins with that."""
        if turns == len(self.turns) and not prompt:
            return self.text
        try:
            prefix = self.template.render(self.turns[:turns], self.tools, prompt=prompt)
        except Unrenderable:
            return None
        return prefix if self.text.startswith(prefix) else None
