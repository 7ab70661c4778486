"""From what ``data.path`` says to files: a file, a directory, a pattern, or a list of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import PurePosixPath

from data.errors import DataError
from data.files import metadataset, prepared
from data.files.kinds import kind_of, known_suffixes
from data.files.leaves import Leaf, Leaves, Storage
from data.files.places import Place, WrongUrl, is_pattern, place, split_pattern
from data.files.splits import by_split

# What Hugging Face's library writes beside the data, in files of a kind that data has too.
_ABOUT_THE_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


def locate(path: str | Sequence[str], *, key: str) -> Storage:
    """Find the files that a path names.

    A directory stands for all files of records in it, in the order of their paths, hidden ones
    left out; one that Energon has prepared for the shards and splits that its ``split.yaml`` names.
    A YAML file is a metadataset of Energon's.

    Args:
        path: a file, a directory, a pattern with wildcards, or several of these.
        key: the configuration key that holds it, for messages.

    Raises:
        DataError: there is nothing, or nothing that can be used.
    """
    if isinstance(path, str):
        return _locate(path, key)
    found = [_locate(one, key) for one in path]
    divided = [storage for storage in found if storage.splits]
    url = "[" + ", ".join(path) + "]"
    if not divided:
        files = [file for storage in found for leaf in storage.whole for file in leaf.files]
        return Storage(url=url, whole=_leaf(files))
    if len(divided) < len(found):
        raise DataError(
            f"{key}={url}: {divided[0].url} is divided into splits and others are not; put them "
            "into data.sets"
        )
    names = list(dict.fromkeys(name for storage in found for name in storage.splits))
    return Storage(url=url, splits={name: _joined(found, name) for name in names})


def _joined(found: Iterable[Storage], split: str) -> Callable[[], Leaves]:
    parts = [storage.splits[split] for storage in found if split in storage.splits]
    return lambda: tuple(leaf for part in parts for leaf in part())


def _locate(path: str, key: str, trail: metadataset.Trail = ()) -> Storage:
    try:
        start = place(path)
        if start.is_file():
            return _of_file(start, key, trail)
        if start.is_dir():
            return _of_directory(start, key)
        if is_pattern(path):
            return _of_pattern(path, key)
    except WrongUrl as error:
        raise DataError(f"{key}={path}: {error}") from error
    except OSError as error:
        raise DataError(
            f"{key}={error.filename or path} cannot be read ({error.strerror or error}); set {key} "
            "to what is there and may be read"
        ) from error
    if start.local is not None and start.local.exists():
        raise DataError(f"{key}={start.url} is not a regular file; set {key} to one that is")
    raise DataError(
        f"{key}={start.url} does not exist; set {key} to a file, a directory, a pattern such as "
        "'chats/*.jsonl', or a list of these"
    )


def _of_file(file: Place, key: str, trail: metadataset.Trail) -> Storage:
    if metadataset.is_metadataset(file.name):
        splits = metadataset.read(file, key=key, locate=_locate, trail=trail)
        return Storage(url=file.url, splits=splits)
    return Storage(url=file.url, whole=_leaf([file]))


def _of_directory(directory: Place, key: str) -> Storage:
    if prepared.is_prepared(directory):
        return Storage(url=directory.url, splits=prepared.read(directory, key=key))
    files = {path: file for path, file in directory.files().items() if _has_records(path)}
    if not files:
        raise DataError(
            f"{key}={directory.url}: holds no files of records; known are {known_suffixes()}; set "
            f"{key} to another directory, or to a file"
        )
    splits = by_split(files, key=key, root=directory.url)
    if splits is None:
        return Storage(url=directory.url, whole=_leaf(files.values()))
    return Storage(
        url=directory.url, splits={name: partial(_leaf, found) for name, found in splits.items()}
    )


def _of_pattern(path: str, key: str) -> Storage:
    root, pattern = split_pattern(path)
    start = place(root)
    found = [file for file in start.matches(pattern) if file.is_file() and kind_of(file.name)]
    if not found:
        raise DataError(
            f"{key}={path}: no file of records fits; known are {known_suffixes()}; change the "
            "pattern"
        )
    return Storage(url=path, whole=_leaf(found))


def _has_records(path: PurePosixPath) -> bool:
    return kind_of(path.name) is not None and path.name not in _ABOUT_THE_DATA


def _leaf(files: Iterable[Place]) -> Leaves:
    """One leaf of these files, each once however often it was named."""
    return (Leaf(files=tuple({file.url: file for file in files}.values())),)
