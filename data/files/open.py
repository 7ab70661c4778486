"""A file of records to an indexed one."""

from __future__ import annotations

from data.errors import DataError
from data.files.convert import converted
from data.files.index import JsonlFile, index_in_place
from data.files.kinds import kind_of, known_suffixes
from data.files.places import Place


def open_file(place: Place, cache_dir: str, *, what: str) -> JsonlFile:
    """Index a file, converting it first where it has no random access.

    Args:
        place: the file.
        cache_dir: where what is converted is kept.
        what: what messages call it: the configuration key that named it, and its URL.

    Raises:
        DataError: it is of no known kind, or it cannot be read.
    """
    kind = kind_of(place.name)
    if kind is None:
        raise DataError(
            f"{what}: its name does not say what it is; known are {known_suffixes()}; rename it, "
            "or convert it to one of these"
        )
    path = place.local
    try:
        if path is not None and kind.compression is None and kind.container.has_lines(path):
            file = index_in_place(path)
        else:
            file = converted(place, kind, cache_dir, what=what)
    except OSError as error:
        raise DataError(
            f"{what} cannot be read ({error.strerror or error}); name a file that is there and "
            "may be read"
        ) from error
    file.what = what
    return file
