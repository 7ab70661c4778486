"""The configuration of a published model, as a plain mapping. No torch, no ``transformers``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.hf.location import locate


def read_config(init_from: str) -> dict[str, Any]:
    """The content of ``config.json``, or what a GGUF file's header says under the same keys.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    where = locate(init_from)
    if where.suffix == ".gguf" and where.is_file():
        from models.hf.gguf import gguf_config

        return gguf_config(where, init_from)
    found = read_json(where / "config.json")
    if found is None:
        ggufs = sorted(p.name for p in where.glob("*.gguf"))
        instead = f"; name a GGUF file in it: {', '.join(ggufs)}" if ggufs else ""
        raise ValueError(f"init_from={init_from}: holds no config.json{instead}")
    return found


def read_generation_config(init_from: str) -> dict[str, Any]:
    """The content of ``generation_config.json``; empty where there is none.

    Raises:
        ValueError: it cannot be read.
    """
    where = locate(init_from)
    return read_json(where / "generation_config.json") or {}


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None where there is no such file.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"init_from: {path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"init_from: {path} is not JSON ({error})") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"init_from: {path} holds no JSON object")
    return dict(content)
