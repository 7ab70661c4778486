"""A metadataset of Energon's: a YAML file that puts data sets together.

Paths, splits, subsets, and the weights of a ``blend`` or the repetitions of a ``blend_epochized``
are honoured. A blend has no end in Energon; here an epoch of it has as many conversations as its
data sets hold together, in the proportions that the weights give. What cannot be honoured is
refused by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from data.errors import DataError, show
from data.files.leaves import Leaf, Leaves, Storage, Subset
from data.files.places import Place, WrongUrl
from data.files.read_yaml import read_yaml

_REFERENCE = ("path", "split_part", "subset")
_BLENDS = {"blend": "weight", "blend_epochized": "repetitions"}
_MOST_REPETITIONS = 1e6

# The splits of metadatasets that one is part of, by their files.
type Trail = tuple[tuple[str, str], ...]
type Locate = Callable[[str, str, Trail], Storage]


def is_metadataset(name: str) -> bool:
    """Whether a file of that name is one."""
    return name.endswith((".yaml", ".yml"))


def read(
    file: Place, *, key: str, locate: Locate, trail: Trail = ()
) -> dict[str, Callable[[], Leaves]]:
    """The leaves of each split; a split's data sets are looked for when it is used.

    Args:
        file: the YAML.
        key: the configuration key that led to it, for messages.
        locate: says what a path stands for, given its key, and the splits that led to it.
        trail: the splits that led to this file.

    Raises:
        DataError: it is no metadataset of version 2, or asks for what cannot be honoured.
    """
    content = read_yaml(file, key=key)
    splits = content.get("splits") if isinstance(content, dict) else None
    if not isinstance(splits, dict) or content.get("__class__") != "MetadatasetV2":
        raise DataError(
            f"{key}={file.url}: is no metadataset; it needs __class__: MetadatasetV2, and splits"
        )
    reader = _Reader(file=file, key=key, locate=locate, trail=trail)
    reader.refuse_others(content, ("__module__", "__class__", "splits"), "")
    return {str(name): partial(reader.split, str(name), node) for name, node in splits.items()}


@dataclass(frozen=True, kw_only=True)
class _Reader:
    file: Place
    key: str
    locate: Locate
    trail: Trail

    def split(self, name: str, node: Any) -> Leaves:
        """The leaves of one split."""
        where = f"splits.{name}"
        if (self.file.url, name) in self.trail:
            raise self._wrong(where, "is a part of itself; take it out of what it is made of")
        if not isinstance(node, dict):
            raise self._wrong(where, "must be a mapping with path, blend or blend_epochized")
        blend = next((kind for kind in _BLENDS if kind in node), None)
        if blend is None:
            self.refuse_others(node, _REFERENCE, where)
            return self._reference(node, name, where)
        self.refuse_others(node, (blend, "subset"), where)
        return self._narrowed(self._blend(node[blend], blend, name, where), node, where)

    def refuse_others(self, node: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        """Refuse keys that nothing here would honour."""
        for found in node:
            if found not in known:
                path = f"{where}.{found}".lstrip(".")
                raise self._wrong(path, f"is not honoured; known here: {', '.join(known)}")

    def _blend(self, entries: Any, kind: str, split: str, where: str) -> Leaves:
        weight_key = _BLENDS[kind]
        if not isinstance(entries, list) or not entries:
            raise self._wrong(f"{where}.{kind}", "must be a list of data sets")
        weights, parts = [], []
        for i, entry in enumerate(entries):
            here = f"{where}.{kind}[{i}]"
            if not isinstance(entry, dict):
                raise self._wrong(here, "must be a mapping with path")
            self.refuse_others(entry, (*_REFERENCE, weight_key), here)
            weights.append(self._weight(entry.get(weight_key, 1), f"{here}.{weight_key}", kind))
            parts.append(self._reference(entry, split, here))
        total = sum(weights)
        return tuple(
            self._weighed(leaf, kind, weight, total, where)
            for weight, part in zip(weights, parts, strict=True)
            for leaf in part
        )

    def _weighed(self, leaf: Leaf, kind: str, weight: float, total: float, where: str) -> Leaf:
        if kind == "blend":
            if leaf.times is not None:
                raise self._wrong(where, "a blend cannot hold a blend_epochized")
            return replace(leaf, proportion=(leaf.proportion or 1.0) * weight / total)
        if leaf.proportion is not None:
            raise self._wrong(where, "a blend_epochized cannot hold a blend")
        return replace(leaf, times=(1.0 if leaf.times is None else leaf.times) * weight)

    def _weight(self, value: Any, where: str, kind: str) -> float:
        most = math.inf if kind == "blend" else _MOST_REPETITIONS
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < most:
            below = "finite" if most == math.inf else f"below {most:,.0f}"
            raise self._wrong(where, f"is {show(value)} and must be a number above 0 and {below}")
        return float(value)

    def _reference(self, node: Mapping[str, Any], split: str, where: str) -> Leaves:
        if not isinstance(node.get("path"), str):
            raise self._wrong(f"{where}.path", "must be the path of a data set")
        if not isinstance(part := node.get("split_part"), str | None):
            what = f"is {show(part)} and must be the name of a split"
            raise self._wrong(f"{where}.split_part", what)
        origin, key = f"{self.key}={self.file.url}: ", f"{where}.path"
        try:
            storage = self._storage(node["path"], key, split)
            part = part or (split if storage.splits else None)
            leaves = storage.leaves(part, key=key, split_key=f"{where}.split_part")
        except DataError as error:
            raise DataError(f"{origin}{error}") from error
        named = (replace(leaf, origin=origin + (leaf.origin or f"{key}=")) for leaf in leaves)
        return self._narrowed(tuple(named), node, where)

    def _storage(self, path: str, key: str, split: str) -> Storage:
        try:
            found = self.file.child("..").child(path).url
        except WrongUrl as error:
            raise DataError(f"{key}={path}: {error}") from error
        return self.locate(found, key, (*self.trail, (self.file.url, split)))

    def _narrowed(self, leaves: Leaves, node: Mapping[str, Any], where: str) -> Leaves:
        if node.get("subset") is None:
            return leaves
        subset = self._subset(node["subset"], f"{where}.subset")
        if subset.absolute:
            if len(leaves) != 1 or leaves[0].subset != Subset():
                raise self._wrong(f"{where}.subset", "can only count records of a single data set")
            return (replace(leaves[0], subset=subset),)
        return tuple(replace(leaf, subset=leaf.subset.within(subset)) for leaf in leaves)

    def _subset(self, node: Any, where: str) -> Subset:
        ends = node.get("range") if isinstance(node, dict) and set(node) == {"range"} else None
        if isinstance(ends, list) and len(ends) == 2:
            low, high = (self._end(end) for end in ends)
            if isinstance(low, int) and not isinstance(high, float) and low >= 0:
                if high is None or low < high:
                    return Subset(start=low, stop=high, absolute=True)
            if isinstance(low, float) and not isinstance(high, int):
                high = 1.0 if high is None else high
                if 0 <= low < high <= 1:
                    return Subset(share=(low, high))
        raise self._wrong(
            where,
            f"is {show(node)} and must be {{range: [25%, 75%]}}, or two numbers of records, the "
            "first below the last, which may be end",
        )

    @staticmethod
    def _end(value: Any) -> int | float | None:
        """A number of records, a share, or None for the end; NaN for what is neither."""
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        text = str(value).strip()
        if text == "end":
            return None
        try:
            return float(text.removesuffix("%")) / 100 if text.endswith("%") else float("nan")
        except ValueError:
            return float("nan")

    def _wrong(self, where: str, what: str) -> DataError:
        return DataError(f"{self.key}={self.file.url}: {where}: {what}")
