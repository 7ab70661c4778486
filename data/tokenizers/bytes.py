"""UTF-8 bytes as tokens, and the layout of conversations that goes with them.

Each message becomes ``role id, content, end id``. For user "hi", assistant "yo":

    tokens   <|user|> h i <|end|> <|assistant|> y o <|end|>
    targets     -     - -    -         -        x x    x

Tools come first, as a system message of their own whose content is their list in JSON. The calls
in an assistant's message follow its text on a line of their own, as ``{"tool_calls": [...]}``.
Other extras of a message (names, reasoning) are not laid out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data.conversation import ROLES, Conversation, Message
from data.errors import DataError
from data.targets import LossOn, wanted_turns
from data.tokenizers.base import Rendered

_BYTES = 256
_SPECIALS = ("pad", "end", *ROLES)  # the i-th has id 256 + i


@dataclass(frozen=True)
class ByteTokenizer:
    """UTF-8 bytes as ids 0..255, then one id each for pad, end and the four roles.

    It needs no files and covers every text, which makes it the default for demos and tests.
    """

    @property
    def name(self) -> str:
        """As in ``data.tokenizer=bytes``."""
        return "bytes"

    @property
    def vocab_size(self) -> int:
        """256 bytes and the special ids."""
        return _BYTES + len(_SPECIALS)

    @property
    def pad_id(self) -> int:
        """Its own id, so that padding is visible in decoded rows."""
        return _BYTES

    @property
    def end_id(self) -> int:
        """Closes every message."""
        return _BYTES + 1

    @property
    def special_ids(self) -> frozenset[int]:
        """All that are no bytes."""
        return frozenset(range(_BYTES, self.vocab_size))

    def render(self, conversation: Conversation, loss_on: LossOn) -> Rendered:
        """Lay a conversation out; see the module.

        Targets are set by position, never by comparing ids, so content that happens to hold the
        end id changes nothing. Of an assistant's message its content and end token are targets.
        """
        wanted = wanted_turns(conversation, loss_on)
        pieces: list[npt.NDArray[np.int32]] = []
        targets: list[npt.NDArray[np.bool_]] = []
        for index, role, text in _turns(conversation):
            content = self.encode(text)
            piece = np.concatenate(([self.role_id(role)], content, [self.end_id]))
            pieces.append(piece.astype(np.int32))
            mask = np.full(piece.size, index in wanted or loss_on is LossOn.ALL)
            mask[0] &= loss_on is LossOn.ALL
            targets.append(mask)
        targets[0][0] = False
        return Rendered(tokens=np.concatenate(pieces), targets=np.concatenate(targets))

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Return the UTF-8 bytes of ``text``, int32 ``[n]``: never a special id, whatever it says.

        Raises:
            UnicodeEncodeError: ``text`` holds a lone surrogate.
        """
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    def role_id(self, role: str) -> int:
        """Return the id that opens a message of ``role``.

        Raises:
            ValueError: ``role`` is not one of ``ROLES``.
        """
        if role not in ROLES:
            raise ValueError(f"role {role!r} is unknown; known: {', '.join(ROLES)}")
        return _BYTES + _SPECIALS.index(role)

    def decode(self, ids: npt.ArrayLike) -> str:
        """Return readable text of ``ids`` ``[n]``; special ids as ``<|user|>``, ``<|end|>``, ...

        Bytes that are no valid UTF-8 (a character cut in two) become U+FFFD. An id outside the
        vocabulary, which a model with a padded output layer can produce, is shown as ``<|300|>``.
        """
        array = np.asarray(ids, dtype=np.int64)
        parts, start = [], 0
        for cut in np.flatnonzero((array < 0) | (array >= _BYTES)).tolist():
            parts += [_text(array[start:cut]), _show(int(array[cut]))]
            start = cut + 1
        return "".join([*parts, _text(array[start:])])

    def token_text(self, ids: npt.ArrayLike) -> list[str]:
        """Return the text of each token, a character's at its last byte."""
        texts: list[str] = []
        begun: list[int] = []  # bytes of a character that is not yet whole
        for i in np.asarray(ids, dtype=np.int64).tolist():
            if not 0 <= i < _BYTES:
                texts.append(self.decode([*begun, i]))
                begun = []
                continue
            begun.append(i)
            whole = _is_whole(bytes(begun))
            texts.append(self.decode(begun) if whole else "")
            begun = [] if whole else begun
        if begun:
            texts[-1] += self.decode(begun)
        return texts

    def save(self, directory: Path) -> None:
        """Refuse.

        Raises:
            DataError: always; ``transformers`` has no tokenizer whose ids are these.
        """
        raise DataError(
            f"{directory}: the tokenizer data.tokenizer=bytes has no form that transformers could "
            "load; train with data.tokenizer=DIRECTORY to export a model with its tokenizer"
        )


def _turns(conversation: Conversation) -> Iterator[tuple[int, str, str]]:
    """Index of the message, -1 for the tools; role; text."""
    if conversation.tools:
        yield -1, "system", json.dumps(list(map(dict, conversation.tools)))
    for index, message in enumerate(conversation.messages):
        yield index, message.role, _content(message)


def _content(message: Message) -> str:
    calls = message.extra.get("tool_calls")
    if not calls:
        return message.content
    said = json.dumps({"tool_calls": calls})
    return f"{message.content}\n{said}" if message.content else said


def _is_whole(begun: bytes) -> bool:
    """Whether the bytes are a character, or can no longer become one."""
    try:
        begun.decode()
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return True


def _text(ids: npt.NDArray[np.int64]) -> str:
    return ids.astype(np.uint8).tobytes().decode(errors="replace")


def _show(token_id: int) -> str:
    index = token_id - _BYTES
    return f"<|{_SPECIALS[index] if 0 <= index < len(_SPECIALS) else token_id}|>"
