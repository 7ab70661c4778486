"""Lengths and a capacity in, bins of indices out. Numpy, not torch; one module per algorithm.

A module in this directory is a packer, and its file name is the name people type, unless it begins
with an underscore or is one of the two shared ones. A new packer needs its file here and its file
in ``conf/packer``, and no edit anywhere.
"""

from __future__ import annotations

import pkgutil
from dataclasses import fields
from importlib import import_module
from typing import Any

from data.packers.base import Packer

__all__ = ["ALIASES", "Packer", "load_packer", "packer_names"]

# What other tools call the same algorithms.
ALIASES: dict[str, str] = {
    "best_fit_decreasing": "bfd",
    "first_fit_decreasing": "ffd",
    "first_fit_shuffle": "ffs",
    "modified_first_fit_decreasing": "mffd",
    "next_fit": "concatenative",
}

_SHARED = {"base", "bounds", "cutting_stock", "items", "plan"}


def packer_names() -> list[str]:
    """The packers there are, by name, in alphabetical order."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in names if not name.startswith("_") and name not in _SHARED)


def load_packer(name: str, **options: Any) -> Packer:
    """Makes a packer.

    Args:
        name: one of ``packer_names()`` or ``ALIASES``, in upper or lower case.
        **options: the packer's fields; those left out keep their defaults.

    Returns:
        The packer.

    Raises:
        ValueError: if there is no such packer, it has no such option, or the option has no such
            value.
    """
    key = ALIASES.get(name.lower(), name.lower())
    if key not in packer_names():
        also = ", ".join(f"{alias} (= {known})" for alias, known in sorted(ALIASES.items()))
        raise ValueError(
            f"there is no packer {name!r}; available: {', '.join(packer_names())}; "
            f"also understood: {also}"
        )
    packer = _packer_class(key)
    allowed = [field.name for field in fields(packer)]
    for option in options:
        if option not in allowed:
            raise ValueError(
                f"packer {key!r} has no option {option!r}; it has: {', '.join(allowed)}"
            )
    return packer(**options)


def _packer_class(name: str) -> type[Packer]:
    """The one packer that a module of this package defines; imported ones do not count."""
    module = import_module(f"{__name__}.{name}")
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Packer)
        and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = [packer.__name__ for packer in found]
        raise TypeError(f"{module.__name__} must define exactly one Packer, it defines {names}")
    return found[0]
