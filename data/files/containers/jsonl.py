"""JSON Lines: one record per line. Used where it is; only a compressed one is converted."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from data import notes
from data.files.base import Container, Row
from data.files.index import BOM


class JsonLines(Container):
    """See the module."""

    suffixes = (".jsonl", ".ndjson")
    can_be_compressed = True

    def rows(self, stream: io.BufferedReader) -> Iterator[Row]:
        """Every line that is not blank, labelled with its number."""
        for number, line in enumerate(stream, start=1):
            content = (line.removeprefix(BOM) if number == 1 else line).strip()
            if content:
                yield Row(number, notes.guard(content))

    def has_lines(self, path: Path) -> bool:
        """Always."""
        return True
