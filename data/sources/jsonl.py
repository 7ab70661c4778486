"""The user's own conversations, in a JSONL file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data.jsonl import Records, open_jsonl, split_by_conversation
from data.sources.base import DataSource, PreparedData


@dataclass(frozen=True, kw_only=True)
class JsonlSource(DataSource):
    """One file to train on; another to validate on, or a share of the first.

    Attributes:
        path: one JSON object per line, ``{"messages": [{"role": ..., "content": ...}, ...]}``.
        val_path: the same, for validation; all of it is used, and ``val_fraction`` is not.
    """

    path: str
    val_path: str | None = None

    def prepare(self) -> PreparedData:
        """Index the files.

        Raises:
            DataError: a file is missing or empty, or too small to split.
        """
        file = open_jsonl(self.path)
        if self.val_path is None:
            train, val = split_by_conversation(file, self.val_fraction, limit=self.limit)
        else:
            val_file = open_jsonl(self.val_path, key="data.val_path")
            train, _ = split_by_conversation(file, 0, limit=self.limit)
            val = Records(val_file, np.arange(len(val_file)))
        return PreparedData(train=train, val=val, name=file.path.name, notes={"rows": len(file)})
