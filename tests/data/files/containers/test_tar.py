"""WebDataset shards: samples, keys, and damage."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.data.files.stores import chat, opened, reason, records, rows, write_tar


def member(key: str, question: str = "q") -> tuple[str, bytes]:
    return f"{key}.json", json.dumps(chat(question)).encode()


def labels(path: Path) -> list[tuple[str, str | None]]:
    return [(source_id, reason(line)) for source_id, line in rows(opened(path))]


def test_a_sample_is_its_json_file(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    write_tar(path, [
        ("a/001.jpg", b"\xff\xd8"), member("a/001", "first"), ("a/001.txt", b"x"),
        ("./b/002.json", json.dumps(chat("second"), indent=2).encode()),
    ])  # fmt: skip
    assert records(opened(path)) == [chat("first"), chat("second")]
    assert labels(path) == [("s.tar:a/001", None), ("s.tar:b/002", None)]


def test_samples_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    write_tar(path, [
        member("1"), ("2.txt", b"x"), ("3.messages.json", b"{}"), member("4"), ("4.JSON", b"{}"),
        member("5"), member("6"), member("5"), ("7.json", b"{broken"), ("8.json", b"\0\0"),
    ])  # fmt: skip
    assert labels(path) == [
        ("s.tar:1", None),
        ("s.tar:2", "a sample without a .json file"),
        ("s.tar:3", "a sample without a .json file"),
        ("s.tar:4", "a sample with two .json files"),
        ("s.tar:5", None),
        ("s.tar:6", None),
        ("s.tar:5 (2)", "a sample whose key came before"),
        ("s.tar:7", None),
        ("s.tar:8", None),
    ]


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    write_tar(path, [member("1"), member("2")])
    with tarfile.open(path, "a") as archive:
        folder = tarfile.TarInfo("3.json")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        link = tarfile.TarInfo("4.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert labels(path) == [("s.tar:1", None), ("s.tar:2", None)]


@pytest.mark.parametrize("content", [b"no tar" * 300, b"x" * 100])
def test_not_a_tar_at_all(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(content)
    assert labels(path) == [("s.tar:1", "not a tar file")]


def test_a_shard_that_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    write_tar(path, [member("1"), member("2"), member("3", "x" * 3000)])
    whole = path.read_bytes()
    path.write_bytes(whole[: 4 * 512 + 512 + 700])  # in the content of the third
    assert labels(path) == [
        ("s.tar:1", None), ("s.tar:2", None),
        ("s.tar:after 2", "the archive is damaged from here on"),
    ]  # fmt: skip


def test_a_header_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    write_tar(path, [member(str(n)) for n in range(1, 5)])
    content = bytearray(path.read_bytes())
    content[2 * 1024 : 2 * 1024 + 200] = b"\xaa" * 200  # the third member's
    path.write_bytes(content)
    assert labels(path) == [
        ("s.tar:1", None), ("s.tar:2", None),
        ("s.tar:after 2", "the archive is damaged from here on"),
    ]  # fmt: skip
