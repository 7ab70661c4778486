"""The configuration of a published model, as a plain mapping. No torch, no ``transformers``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.hf.location import locate

# What a shape or a scaling calls otherwise than configurations do.
_THEIR_NAMES = {
    "num_query_groups": "num_key_value_heads",
    "rotary_base": "rope_theta",
    "norm_epsilon": "rms_norm_eps",
    "init_std": "initializer_range",
    "original_context_length": "original_max_position_embeddings",
}


class Section:
    """A configuration, or a group in one, that says where it is from when it is refused."""

    def __init__(self, init_from: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self.init_from = init_from
        self.values = values
        self.prefix = prefix

    def get(self, key: str, default: Any = None) -> Any:
        """The value; the default where there is none, or null."""
        value = self.values.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refusal(key, value, "it must be a whole number of at least 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.get(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) <= sys.float_info.max:  # JSON in Python has NaN
            raise self.refusal(key, value, "it must be a number")
        return float(value)

    def refusal(self, key: str, value: Any, why: str) -> ValueError:
        """What a user is told about a value that cannot be used; it is shown as in ``config.json``.

        Args:
            key: within this section.
            value: what stands there.
            why: what would do, or what to do instead.
        """
        shown = json.dumps(value, ensure_ascii=False)
        return self._refusal(f"{key}={shown}; {why}")

    def refused(self, error: ValueError) -> ValueError:
        """The same of what was built from several values, and says ``name=value: why``."""
        said = re.sub(r"\w+(?==)", lambda found: _THEIR_NAMES.get(found[0], found[0]), str(error))
        return self._refusal(said.replace(": ", "; ", 1))

    def _refusal(self, said: str) -> ValueError:
        return ValueError(f"init_from={self.init_from}: its configuration has {self.prefix}{said}")


def read_config(init_from: str) -> dict[str, Any]:
    """The content of ``config.json``, or what a GGUF file's header says under the same keys.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    where = locate(init_from)
    if where.suffix == ".gguf" and where.is_file():
        from models.hf.gguf import gguf_config

        return gguf_config(where, init_from)
    found = read_json(where / "config.json", init_from)
    if found is None:
        raise ValueError(f"init_from={init_from}: holds no config.json; {_instead(where)}")
    return found


def _instead(where: Path) -> str:
    """What to name instead of a directory without ``config.json``."""
    if ggufs := sorted(p.name for p in where.glob("*.gguf")):
        return f"name a GGUF file in it: {', '.join(ggufs)}"
    if (where / "adapter_config.json").exists():
        return "it is an adapter, so name the model it is for, or merge the two"
    return (
        "name a directory as transformers saves a model; of a run, python -m sft.export writes one"
    )


def read_generation_config(init_from: str) -> dict[str, Any]:
    """The content of ``generation_config.json``; empty where there is none.

    Raises:
        ValueError: it cannot be read.
    """
    where = locate(init_from)
    return read_json(where / "generation_config.json", init_from) or {}


def read_json(path: Path, init_from: str) -> dict[str, Any] | None:
    """A JSON object from a file; None where there is no such file.

    Args:
        path: of the file.
        init_from: as configured, for messages.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    named = f"init_from={init_from}: {path}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = f"cannot be read ({error.strerror or error}); make it readable for this user"
        raise ValueError(f"{named} {why}") from error
    except ValueError as error:
        raise ValueError(f"{named} is not JSON ({error}); mend it, or fetch it again") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{named} holds no JSON object; fetch it again")
    return dict(content)
