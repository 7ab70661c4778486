"""Text to ids and back. Only text is encoded: special ids come from the chat renderer alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from data.errors import DataError

ROLES = ("system", "user", "assistant", "tool")

_BYTES = 256
_SPECIALS = ("pad", "end", *ROLES)  # the i-th has id 256 + i


class Tokenizer(Protocol):
    """What the rest of the package needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Ids are in ``[0, vocab_size)``."""

    @property
    def pad_id(self) -> int:
        """Fills slots that hold no token. May equal ``end_id``: nothing is masked by id."""

    @property
    def end_id(self) -> int:
        """Closes every message."""

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Return the ids of ``text``, int32 ``[n]``; never a special id, whatever the text says."""

    def role_id(self, role: str) -> int:
        """Return the id that opens a message of ``role``; ValueError for an unknown role."""

    def decode(self, ids: npt.ArrayLike) -> str:
        """Return readable text; special ids are shown as ``<|user|>``, ``<|end|>``, ..."""


@dataclass(frozen=True)
class ByteTokenizer:
    """UTF-8 bytes as ids 0..255, then one id each for pad, end and the four roles.

    It needs no files and covers every text, which makes it the default for demos and tests.
    """

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

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Return the UTF-8 bytes of ``text``, int32 ``[n]``.

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
        """Return readable text of ``ids`` ``[n]``.

        Bytes that are no valid UTF-8 (a character cut in two) become U+FFFD. An id outside the
        vocabulary, which a model with a padded output layer can produce, is shown as ``<|300|>``.
        """
        array = np.asarray(ids, dtype=np.int64)
        parts, start = [], 0
        for cut in np.flatnonzero((array < 0) | (array >= _BYTES)).tolist():
            parts += [_text(array[start:cut]), _show(int(array[cut]))]
            start = cut + 1
        return "".join([*parts, _text(array[start:])])


def _text(ids: npt.NDArray[np.int64]) -> str:
    return ids.astype(np.uint8).tobytes().decode(errors="replace")


def _show(token_id: int) -> str:
    index = token_id - _BYTES
    return f"<|{_SPECIALS[index] if 0 <= index < len(_SPECIALS) else token_id}|>"


def load_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer that ``data.tokenizer`` names.

    Raises:
        DataError: there is no tokenizer of that name.
    """
    if name == "bytes":
        return ByteTokenizer()
    raise DataError(f"data.tokenizer={name!r} is unknown; allowed: 'bytes'")
