"""A WebDataset shard: a tar file in which the files of one sample stand together, under one key.

The key is a file's name up to the first dot of its last part. The record is the sample's ``.json``
file; what else belongs to the sample is left alone. Rows are labelled with their keys.
"""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Iterator

from data import notes
from data.files.base import Container, Damaged, Row, one_line

_DAMAGED = "the archive is damaged from here on"
_NO_RECORD = "a sample without a .json file"
_TWO_RECORDS = "a sample with two .json files"
_TWICE = "a sample whose key came before"
_BLOCK = 512


class TarShard(Container):
    """See the module."""

    suffixes = (".tar",)

    def rows(self, stream: io.BufferedReader) -> Iterator[Row]:
        """The record of every sample."""
        try:
            archive = tarfile.open(fileobj=stream, mode="r:")
        except (tarfile.TarError, OSError, ValueError, EOFError):
            raise Damaged("not a tar file") from None
        seen: Counter[str] = Counter()
        with archive:
            for key, records in _samples(archive, stream):
                seen[key] += 1
                if seen[key] > 1:
                    yield Row(f"{key} ({seen[key]})", notes.damaged(_TWICE))
                elif len(records) != 1:
                    reason = _TWO_RECORDS if records else _NO_RECORD
                    yield Row(key, notes.damaged(reason))
                else:
                    yield Row(key, one_line(records[0]))


def _samples(
    archive: tarfile.TarFile, stream: io.BufferedReader
) -> Iterator[tuple[str, list[bytes]]]:
    """Each sample's key, and what its ``.json`` files hold."""
    key: str | None = None
    records: list[bytes] = []
    try:
        for member in _members(archive, stream):
            name, extension = _split(member.name)
            if name != key:
                if key is not None:
                    yield key, records
                key, records = name, []
            if extension == "json":
                records.append(_read(archive, member))
    except Damaged:
        if key is not None and records:
            yield key, records
        raise
    if key is not None:
        yield key, records


def _members(archive: tarfile.TarFile, stream: io.BufferedReader) -> Iterator[tarfile.TarInfo]:
    while True:
        try:
            member = archive.next()
        except (tarfile.TarError, OSError, ValueError, EOFError):
            raise Damaged(_DAMAGED) from None
        if member is None:
            break
        archive.members = []  # type: ignore[attr-defined] # it would keep every one of them
        if member.isfile():
            yield member
    # tarfile takes any block that it cannot read for the end.
    stream.seek(archive.offset)
    if stream.read(_BLOCK).strip(b"\0"):
        raise Damaged(_DAMAGED)


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    try:
        content = archive.extractfile(member)
        assert content is not None
        with content:
            return content.read()
    except (tarfile.TarError, OSError, ValueError, EOFError):
        raise Damaged(_DAMAGED) from None


def _split(name: str) -> tuple[str, str]:
    folder, slash, last = name.rpartition("/")
    stem, _, extension = last.partition(".")
    return f"{folder}{slash}{stem}".removeprefix("./"), extension.lower()
