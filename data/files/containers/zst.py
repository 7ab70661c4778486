"""Zstandard."""

from __future__ import annotations

import io
from collections.abc import Iterator

from data.files.base import Compression, Damaged, Unusable

# Compressed bytes at a time. What stands in the same piece before a damage is lost with it.
_PIECE = 512
_READ = 1 << 17
_LARGEST_WINDOW = 1 << 31  # bytes; what zstd --long=31 asks for, and more there is not
_CUT = "compressed data breaks off"
_DAMAGED = "compressed data is damaged"


class Zstandard(Compression):
    """See the module."""

    suffixes = (".zst",)

    def chunks(self, stream: io.BufferedReader) -> Iterator[bytes]:
        """The content of all frames, one after another."""
        try:
            import zstandard
        except ImportError:
            raise Unusable("it needs the package zstandard: pip install zstandard") from None
        decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        frame = decompressor.decompressobj()
        begun = False
        for piece in _pieces(stream):
            while piece:
                begun = True
                try:
                    content = frame.decompress(piece)
                except zstandard.ZstdError:
                    raise Damaged(_DAMAGED) from None
                if content:
                    yield content
                if not frame.eof:
                    break
                piece = frame.unused_data
                frame, begun = decompressor.decompressobj(), False
        if begun:
            raise Damaged(_CUT)


def _pieces(stream: io.BufferedReader) -> Iterator[bytes]:
    while block := stream.read(_READ):
        for start in range(0, len(block), _PIECE):
            yield block[start : start + _PIECE]
