"""The splits of a directory whose files are named for them, as data sets on Hugging Face are.

``train-00000-of-00002.parquet`` is of the split ``train``, ``test_sft/1.jsonl`` of ``test_sft``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from data.errors import DataError
from data.files.places import Place

_SPLIT = re.compile(
    r"(?P<split>(?:train|validation|valid|val|dev|eval|test)(?:_[A-Za-z][A-Za-z0-9]*)*)"
    r"(?=[-._0-9]|$)"
)


def split_of(path: PurePosixPath) -> str | None:
    """The split that a file is of; None where its path does not say.

    Args:
        path: seen from the directory of the data set.
    """
    for part in reversed(path.parts):
        if found := _SPLIT.match(part):
            return found["split"]
    return None


def by_split(
    files: Mapping[PurePosixPath, Place], *, key: str, root: str
) -> dict[str, list[Place]] | None:
    """Files by their split; None where they are not divided into splits.

    They are where one is for training and another is not.

    Args:
        files: by their path in the directory.
        key: the configuration key that named the directory, for messages.
        root: the directory, for messages.

    Raises:
        DataError: some files are of a split and others of none.
    """
    splits: dict[str, list[Place]] = {}
    others = []
    for path, place in files.items():
        name = split_of(path)
        if name is None:
            others.append(path)
        else:
            splits.setdefault(name, []).append(place)
    training = [name for name in splits if name.startswith("train")]
    if not training or len(training) == len(splits):
        return None
    if others:
        raise DataError(
            f"{key}={root}: has the splits {', '.join(splits)}, and {others[0]} belongs to none of "
            f"them; name the files to use, {key}=[..., ...]"
        )
    return splits
