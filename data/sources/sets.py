"""The settings of one data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data.errors import DataError, show, unknown_key
from data.formats import check_format

_KEYS = ("path", "weight", "format", "columns", "split")


@dataclass(frozen=True, kw_only=True)
class SetSettings:
    """One data set.

    Attributes:
        path: a file, a directory, a pattern, or several of these.
        key: the configuration key it stands under, for messages.
        weight: how often each of its conversations comes in an epoch.
        format: of its records; None: as ``data.format`` says.
        columns: of its records; None: as ``data.columns`` says.
        split: which split to train on; None: ``train`` where there are splits.
        split_key: the configuration key of ``split``.
    """

    path: str | Sequence[str]
    key: str
    weight: float = 1.0
    format: str | None = None
    columns: Mapping[str, str] | None = None
    split: str | None = None
    split_key: str

    @classmethod
    def of(cls, node: Any, number: int) -> SetSettings:
        """An entry of ``data.sets``.

        Raises:
            ValueError: naming the key, the value and what is allowed.
        """
        key = f"data.sets[{number}]"
        if isinstance(node, str):
            node = {"path": node}
        if not isinstance(node, dict):
            raise ValueError(
                f"{key}={show(node)}: must be a path, or a mapping, {{path: a.jsonl, weight: 2}}"
            )
        for name, value in node.items():
            if name not in _KEYS:
                raise ValueError(unknown_key(f"{key}.{name}", value, _KEYS))
        weight = node.get("weight", 1)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e6:
            raise ValueError(
                f"{key}.weight={show(weight)}: must be a number above 0 and below 1,000,000"
            )
        columns = node.get("columns")
        if columns is not None and not isinstance(columns, dict):
            raise ValueError(
                f"{key}.columns={show(columns)}: must be a mapping, {{prompt: question}}"
            )
        for name in ("format", "split"):
            if not isinstance(node.get(name), str | None):
                raise ValueError(f"{key}.{name}={show(node[name])}: must be text")
        try:
            check_format(node.get("format") or "auto", columns or {}, prefix=f"{key}.")
        except DataError as error:
            raise ValueError(str(error)) from error
        return cls(
            path=check_path(node.get("path"), f"{key}.path"),
            key=f"{key}.path",
            weight=float(weight),
            format=node.get("format"),
            columns=columns,
            split=node.get("split"),
            split_key=f"{key}.split",
        )


def check_path(path: Any, key: str) -> str | list[str]:
    """A path or several, as they are written.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(path, str) and path:
        return path
    if isinstance(path, list) and path and all(isinstance(one, str) and one for one in path):
        return path
    raise ValueError(
        f"{key}={show(path)}: must be a file, a directory, a pattern such as 'chats/*.jsonl', or a "
        "list of these"
    )
