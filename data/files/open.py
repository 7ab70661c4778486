"""A file of records to an indexed one."""

from __future__ import annotations

from data.errors import DataError
from data.files.convert import converted
from data.files.index import JsonlFile, index_in_place
from data.files.kinds import kind_of, known_suffixes
from data.files.places import Place


def open_file(place: Place, cache_dir: str, *, key: str) -> JsonlFile:
    """Index a file, converting it first where it has no random access.

    Args:
        place: the file.
        cache_dir: where what is converted is kept.
        key: the configuration key that named the file, for messages.

    Raises:
        DataError: it is of no known kind, or it cannot be read.
    """
    kind = kind_of(place.name)
    if kind is None:
        raise DataError(
            f"{key}={place.url}: its name does not say what it is; known are {known_suffixes()}"
        )
    path = place.local
    try:
        if path is not None and kind.compression is None and kind.container.has_lines(path):
            return index_in_place(path)
        return converted(place, kind, cache_dir, key=key)
    except OSError as error:
        raise DataError(
            f"{key}={place.url} cannot be read ({error.strerror or error}); set {key} to a file "
            "that this user may read"
        ) from error
