"""Writes records into files of every kind, and reads rows back."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from data.files.index import JsonlFile
from data.files.open import open_file
from data.files.places import place


def chat(question: str, answer: str = "yo") -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns}


def chats(n: int, tag: str = "q") -> list[dict[str, Any]]:
    return [chat(f"{tag}{k}") for k in range(n)]


def lines(records: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def write_parquet(path: Path, records: Sequence[Any], *, group_size: int = 1000) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.Table.from_pylist(list(records)),
        path,
        row_group_size=group_size,
        write_page_checksum=True,
        use_dictionary=False,
    )


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write(path: Path, records: Sequence[Any]) -> Path:
    """The records in a file of the kind that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name
    if name.endswith(".parquet"):
        write_parquet(path, records)
        return path
    if name.endswith(".tar"):
        samples = enumerate(records)
        write_tar(path, ((f"{i:06d}.json", json.dumps(record).encode()) for i, record in samples))
        return path
    inner = name.removesuffix(".gz").removesuffix(".zst")
    content = json.dumps(records).encode() if inner.endswith(".json") else lines(records)
    if name.endswith(".gz"):
        content = gzip.compress(content)
    elif name.endswith(".zst"):
        import zstandard

        content = zstandard.ZstdCompressor(write_checksum=True).compress(content)
    path.write_bytes(content)
    return path


def opened(path: Path, cache: Path | None = None) -> JsonlFile:
    cache = cache or path.parent / "cache"
    return open_file(place(str(path)), str(cache), what=f"data.path={path}")


def rows(file: JsonlFile) -> list[tuple[str, bytes]]:
    return [(file.source_id(row), file.read(row)) for row in range(len(file))]


def records(file: JsonlFile) -> list[Any]:
    return [json.loads(line) for _, line in rows(file)]


def ids(file: JsonlFile) -> list[str]:
    return [source_id for source_id, _ in rows(file)]


def reason(line: bytes) -> str | None:
    """Why there is no record, if there is none."""
    from data import notes

    return notes.split(line)[0].damage
