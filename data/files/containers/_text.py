"""A JSON document that is read as it is needed: its values, and where they stand."""

from __future__ import annotations

import codecs
import io
import json
from typing import Any

from data.files.base import Damaged, read_most

_CHUNK = 1 << 18  # bytes
_BROKEN = "JSON is broken from here on"
_DEEP = "JSON nested too deeply"
# A literal or an escape that the end of the buffer has cut in two fails so close to it.
_CUT = 16
_SPACE = " \t\n\r"

_STRICT = json.JSONDecoder(parse_int=float)
_LENIENT = json.JSONDecoder(parse_int=float, strict=False)


class JsonText:
    """The text of a document, with a position in it.

    What is no valid UTF-8 is kept as surrogates and can be turned back into the bytes it was.
    """

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._buffer = ""
        self._at = 0
        self._held: int | None = None
        self._ended = False
        self._damage: Damaged | None = None  # that comes behind the buffer

    def peek(self, characters: int = 1) -> str:
        """The next characters that are no space; fewer at the end of the text."""
        seen = ""
        at = self._at
        while len(seen) < characters:
            if at >= len(self._buffer):
                if self._ended:
                    break
                at -= self._more()
            elif self._buffer[at] not in _SPACE:
                seen += self._buffer[at]
                at += 1
            else:
                at += 1
                if not seen:
                    self._at = at
        return seen

    def take(self, allowed: str) -> str:
        """Go past the next character.

        Raises:
            Damaged: it is none of those allowed.
        """
        found = self.peek()
        if not found or found not in allowed:
            raise Damaged(_BROKEN)
        self._at += 1
        return found

    def value(self) -> tuple[Any, str]:
        """Go past the next value; return it, without its integers, and its text.

        A value that is only wrong for a control character in a string is gone past as well: its
        text tells whoever reads it next.

        Raises:
            Damaged: there is no value here.
        """
        self.peek()
        decoder = _STRICT
        while True:
            try:
                value, end = decoder.raw_decode(self._buffer, self._at)
            except RecursionError:
                raise Damaged(_DEEP) from None
            except json.JSONDecodeError as error:
                if "control character" in error.msg and decoder is _STRICT:
                    decoder = _LENIENT
                    continue
                cut = error.msg.startswith("Unterminated") or (
                    error.pos >= len(self._buffer) - _CUT
                )
                if self._ended or not cut:
                    raise Damaged(_BROKEN) from None
            else:
                # A number that ends where the buffer does may go on.
                if self._ended or end < len(self._buffer):
                    text = self._buffer[self._at : end]
                    self._at = end
                    return value, text
            self._more()

    def hold(self) -> None:
        """Remember this position, for :meth:`rewind`."""
        self._held = self._at

    def release(self) -> None:
        """Forget the position that was remembered."""
        self._held = None

    def rewind(self) -> None:
        """Go back to the position that was remembered, and forget it."""
        assert self._held is not None
        self._at, self._held = self._held, None

    def _more(self) -> int:
        """Read on; return by how much positions have moved to the front."""
        passed = self._at if self._held is None else min(self._held, self._at)
        self._buffer = self._buffer[passed:]
        self._at -= passed
        if self._held is not None:
            self._held -= passed
        if self._damage is not None:
            raise self._damage
        # In proportion to what is kept, or a very long value would be gone through too often.
        data, self._damage = read_most(self._stream, max(_CHUNK, len(self._buffer)))
        if self._damage is not None and not data:
            raise self._damage
        self._ended = not data
        self._buffer += self._decoder.decode(data, final=not data)
        return passed
