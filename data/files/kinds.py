"""Which kind a file is of, told by the end of its name."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import Any

from data.files import containers
from data.files.base import Compression, Container


@dataclass(frozen=True)
class Kind:
    """What a file is.

    Attributes:
        container: how its records are found.
        compression: what is around it; None: nothing.
    """

    container: Container
    compression: Compression | None = None


def kind_of(name: str) -> Kind | None:
    """The kind of a file of that name; None for one that holds no records."""
    compression = _ending(name, _all(Compression))
    if compression is not None:
        suffix = next(s for s in compression.suffixes if name.lower().endswith(s))
        name = name[: -len(suffix)]
    container = _ending(name, _all(Container))
    if container is None or (compression is not None and not container.can_be_compressed):
        return None
    return Kind(container, compression)


def known_suffixes() -> str:
    """What the name of a file can end in, for people."""
    plain = [s for found in _all(Container) for s in found.suffixes]
    inner = [s for found in _all(Container) if found.can_be_compressed for s in found.suffixes]
    outer = [s for found in _all(Compression) for s in found.suffixes]
    return f"{', '.join(plain)}, and {', '.join(inner)} with {' or '.join(outer)} behind"


def _ending(name: str, among: tuple[Any, ...]) -> Any:
    return next((f for f in among if name.lower().endswith(f.suffixes)), None)


@cache
def _all(kind: Any) -> tuple[Any, ...]:
    found = []
    for module in sorted(info.name for info in pkgutil.iter_modules(containers.__path__)):
        for value in vars(importlib.import_module(f"{containers.__name__}.{module}")).values():
            own = isinstance(value, type) and value.__module__.endswith(f".{module}")
            if own and issubclass(value, kind):
                found.append(value())
    return tuple(found)
