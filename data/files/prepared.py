"""A directory of WebDataset shards that ``energon prepare`` has been through: its splits.

Only what ``.nv-meta/split.yaml`` says is used: the shards of each split, and what is excluded. The
order in which they are read is not Energon's but :mod:`data.windows`'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from data.errors import DataError, show
from data.files.leaves import Leaf, Leaves
from data.files.places import Place
from data.files.read_yaml import read_yaml

_META = ".nv-meta"
# They say how Energon makes a sample of a shard's files; here that is the format's business.
_NOT_HONOURED = ("sample_loader", "part_filter", "field_map", "subflavors")


def is_prepared(directory: Place) -> bool:
    """Whether Energon has prepared this directory."""
    return directory.child(_META).is_dir()


def read(directory: Place, *, key: str) -> dict[str, Callable[[], Leaves]]:
    """The leaves of each split.

    Raises:
        DataError: the directory cannot be used as it is; the message says what is in the way.
    """
    about = _yaml(directory, ("dataset.yaml", "dataset.yml"), key) or {}
    for name in _NOT_HONOURED:
        if about.get(name):
            raise DataError(
                f"{key}={directory.url}: {_META}/dataset.yaml has {name}, which is not honoured; a "
                "sample's record is its .json file, read by data.format. Remove it there"
            )
    content = _yaml(directory, ("split.yaml", "split.json"), key)
    parts = content.get("split_parts") if content else None
    if content is None or not isinstance(parts, Mapping) or not parts:
        raise DataError(
            f"{key}={directory.url}: {_META} has no split.yaml with split_parts; prepare the "
            "directory with `energon prepare`"
        )
    origin = f"{key}={directory.url}: {_META}/split.yaml: "
    excluded = set(_expanded(content.get("exclude"), f"{origin}exclude"))
    return {
        str(name): partial(
            _leaves,
            directory,
            _expanded(shards, f"{origin}split_parts.{name}"),
            excluded,
            origin,
        )
        for name, shards in parts.items()
    }


def _leaves(directory: Place, shards: list[str], excluded: set[str], origin: str) -> Leaves:
    names = [name for name in shards if name not in excluded]
    labels: dict[str, frozenset[str]] = {}
    for name in names:
        start = f"{name}/"
        found = {entry.removeprefix(start) for entry in excluded if entry.startswith(start)}
        if found:
            labels[directory.child(name).url] = frozenset(found)
    return (Leaf(files=tuple(map(directory.child, names)), origin=origin, excluded=labels),)


def _expanded(names: Any, where: str) -> list[str]:
    from braceexpand import braceexpand

    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{where}={show(names)}: must be a list of names, [shard-{{000..009}}.tar]")
    found: list[str] = []
    for pattern in names:
        try:
            found += braceexpand(pattern)
        except ValueError as error:  # UnbalancedBracesError, which its types do not know of
            raise DataError(
                f"{where}: {pattern} has a brace without its other half; mend it, or run `energon "
                "prepare` again"
            ) from error
    return found


def _yaml(directory: Place, names: tuple[str, ...], key: str) -> dict[str, Any] | None:
    for name in names:
        file = directory.child(f"{_META}/{name}")
        if not file.is_file():
            continue
        content = read_yaml(file, key=key)
        if isinstance(content, dict):
            return content
        raise DataError(f"{key}={file.url}: must hold a mapping")
    return None
