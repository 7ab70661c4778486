"""What holds for every kind of file: the same records, in order, with labels that differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.files.base import Container
from data.files.kinds import kind_of, known_suffixes
from tests.data.files.stores import chats, ids, opened, records, write

NAMES = [
    "c.jsonl", "c.ndjson", "c.json", "c.jsonl.gz", "c.ndjson.gz", "c.json.gz", "c.jsonl.zst",
    "c.json.zst", "c.parquet", "c.tar",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_records_come_back_in_order(name: str, tmp_path: Path) -> None:
    file = opened(write(tmp_path / name, chats(2500)))
    assert records(file) == chats(2500)
    numbers = range(2500)
    labels = [f"{i:06d}" for i in numbers] if name == "c.tar" else [str(i + 1) for i in numbers]
    assert ids(file) == [f"{name}:{label}" for label in labels]


@pytest.mark.parametrize("name", NAMES)
def test_equal_records_have_equal_fingerprints(name: str, tmp_path: Path) -> None:
    several = [*chats(3), *chats(2)]
    prints = opened(write(tmp_path / name, several)).fingerprints
    assert (prints[:2] == prints[3:]).all()
    assert np.unique(prints).size == 3


@pytest.mark.parametrize("name", NAMES)
def test_no_records(name: str, tmp_path: Path) -> None:
    if name == "c.parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"messages": pa.array([], pa.string())}), tmp_path / name)
    else:
        write(tmp_path / name, [])
    assert len(opened(tmp_path / name)) == 0


def test_upper_case_names(tmp_path: Path) -> None:
    assert records(opened(write(tmp_path / "C.json", chats(2)).rename(tmp_path / "C.JSON")))


@pytest.mark.parametrize(
    "name", ["a.txt", "a", "jsonl", "a.jsonl.idx", "a.gz", "a.txt.gz", "a.tar.gz", "a.parquet.zst"]
)
def test_what_is_no_file_of_records(name: str) -> None:
    assert kind_of(name) is None


def test_known_suffixes() -> None:
    assert known_suffixes() == (
        ".json, .jsonl, .ndjson, .parquet, .tar, and .json, .jsonl, .ndjson with .gz or .zst behind"
    )


def test_a_container_says_what_it_is() -> None:
    kinds = [kind_of(name) for name in NAMES]
    assert all(kind is not None and isinstance(kind.container, Container) for kind in kinds)
