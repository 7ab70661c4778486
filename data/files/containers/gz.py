"""Gzip. What stands before a damage is recovered to the last byte."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator

from data.files.base import Compression, Damaged

_PIECE = 1 << 14  # compressed bytes that are decompressed at a time
_CUT = "compressed data breaks off"
_DAMAGED = "compressed data is damaged"


class Gzip(Compression):
    """See the module."""

    suffixes = (".gz",)

    def chunks(self, stream: io.BufferedReader) -> Iterator[bytes]:
        """The content of all members, one after another."""
        member = _member()
        begun = False
        while piece := stream.read(_PIECE):
            while piece:
                if not begun:
                    piece = piece.lstrip(b"\0")  # padding after a member
                    if not piece:
                        break
                    begun = True
                before = member.copy()
                try:
                    content = member.decompress(piece)
                except zlib.error:
                    yield _recover(before, piece)
                    raise Damaged(_DAMAGED) from None
                if content:
                    yield content
                piece = member.unused_data
                if member.eof:
                    member, begun = _member(), False
        if begun:
            raise Damaged(_CUT)


def _member() -> zlib._Decompress:
    return zlib.decompressobj(wbits=31)  # with a gzip header and its checksum


def _recover(member: zlib._Decompress, piece: bytes) -> bytes:
    """What of a piece can be had before the byte that is wrong."""
    content = bytearray()
    for i in range(len(piece)):
        try:
            content += member.decompress(piece[i : i + 1])
        except zlib.error:
            break
    return bytes(content)
