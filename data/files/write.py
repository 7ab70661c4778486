"""Files that appear complete or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_jsonl(path: str | Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line; the file appears complete or not at all."""
    write_atomically(path, (json.dumps(record).encode() + b"\n" for record in records))


def write_atomically(path: str | Path, chunks: Iterable[bytes]) -> None:
    """Write a file under a name of its own and rename it once it is complete.

    Several processes may write the same path at once: the last rename wins, and readers see one
    complete file or another.

    Raises:
        OSError: the directory cannot be written; nothing is left behind.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as out:
            out.writelines(chunks)
            out.flush()
            os.fsync(out.fileno())  # or a power cut could leave the new name on an empty file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
