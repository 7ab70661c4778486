"""Files that are always whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft.errors import TrainingError


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name first: whoever reads it finds the old one or this one.

    Raises:
        OSError: it cannot be written; then nothing is left of it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON in the same way; a number that JSON does not have is refused."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def leave(path: Path, content: Mapping[str, Any]) -> None:
    """Write a result; that it cannot be ends the run with a message, as of ``metrics.jsonl``."""
    try:
        write_json(path, content)
    except OSError as error:
        raise TrainingError(f"{path}: cannot be written ({error.strerror or error})") from error
