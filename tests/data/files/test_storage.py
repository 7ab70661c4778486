"""What a path stands for: files, directories, patterns, lists, and their splits."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from data.errors import DataError
from data.files.leaves import Leaves, Subset
from data.files.splits import split_of
from data.files.storage import locate
from tests.data.files.stores import chats, write


def names(leaves: Leaves, root: Path) -> list[str]:
    return [str(Path(file.url).relative_to(root)) for leaf in leaves for file in leaf.files]


def found(path: str | list[str], root: Path) -> list[str]:
    return names(locate(path, key="data.path").whole, root)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "b.jsonl", "a.json", "z/c.parquet", "z/d.jsonl.gz", ".hidden.jsonl", ".git/e.jsonl",
        "z/.f/g.jsonl",
    ):  # fmt: skip
        write(tmp_path / name, chats(1))
    for name in ("README.md", "b.jsonl.idx", "dataset_info.json", "z/h.jsonl.bak"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_one_file(tree: Path) -> None:
    assert found(str(tree / "b.jsonl"), tree) == ["b.jsonl"]


def test_a_directory_is_all_files_of_records_in_it(tree: Path) -> None:
    assert found(str(tree), tree) == ["a.json", "b.jsonl", "z/c.parquet", "z/d.jsonl.gz"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.json*", ["a.json", "b.jsonl", "dataset_info.json"]),
        ("*/*", ["z/c.parquet", "z/d.jsonl.gz"]),
        ("**/*.jsonl", ["b.jsonl"]),
        ("[ab].json*", ["a.json", "b.jsonl"]),
        ("z/?.parquet", ["z/c.parquet"]),
    ],
)
def test_patterns(tree: Path, pattern: str, expected: list[str]) -> None:
    assert found(str(tree / pattern), tree) == expected


def test_a_list_keeps_its_order_and_takes_each_file_once(tree: Path) -> None:
    paths = [str(tree / "z"), str(tree / "b.jsonl"), str(tree / "*.json*")]
    assert found(paths, tree) == [
        "z/c.parquet", "z/d.jsonl.gz", "b.jsonl", "a.json", "dataset_info.json",
    ]  # fmt: skip


def test_relative_and_home_paths(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "z")
    monkeypatch.setenv("HOME", str(tree))
    assert found("../b.jsonl", tree) == found("~/b.jsonl", tree) == ["b.jsonl"]
    assert found("../*.jsonl", tree) == ["b.jsonl"]


def test_a_file_whose_name_looks_like_a_pattern(tree: Path) -> None:
    write(tree / "x[1].jsonl", chats(1))
    assert found(str(tree / "x[1].jsonl"), tree) == ["x[1].jsonl"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nope.jsonl", r"^data\.path=.*/nope\.jsonl does not exist; set data\.path to a file, a"),
        ("nope*.jsonl", r"^data\.path=.*nope\*\.jsonl: no file of records fits; known are \.json"),
        ("empty", r"^data\.path=.*/empty: holds no files of records; known are \.json"),
        ("pipe.jsonl", r"^data\.path=.*pipe\.jsonl is not a regular file"),
        (
            "s3://bucket/a.jsonl",
            r"^data\.path=s3://bucket/a\.jsonl: of URLs only msc://PROFILE/PAT",
        ),
        ("~no-one/a", r"^data\.path=~no-one/a cannot be read \(~no-one is nobody's "),
        ("~no-one/*", r"^data\.path=~no-one/\* cannot be read \(~no-one is nobody's"),
    ],
)
def test_what_is_not_there_is_named(tree: Path, path: str, message: str) -> None:
    (tree / "empty").mkdir()
    os.mkfifo(tree / "pipe.jsonl")
    with pytest.raises(DataError, match=message):
        locate(path if path.startswith(("s3:", "~")) else str(tree / path), key="data.path")


@pytest.mark.parametrize("path", ["", "z", "*.jsonl"])
def test_a_directory_that_may_not_be_read(
    tree: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tree if "*" in path else tree / "z"

    def refusing(look: Any) -> Any:
        def call(at: Any) -> Any:
            if Path(at) == closed:
                raise PermissionError(errno.EACCES, "Permission denied", str(at))
            return look(at)

        return call

    # Root may read everything, so no mode of the directory's would do.
    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    with pytest.raises(DataError, match=rf"^data\.path={closed} cannot be read \(Permission den"):
        locate(str(tree / path), key="data.path")


# --- splits


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train.jsonl", "train"),
        ("train-00000-of-00002.parquet", "train"),
        ("data/train-00000-of-00001-abc.parquet", "train"),
        ("train_sft-00000-of-00003.parquet", "train_sft"),
        ("train_00001.jsonl.gz", "train"),
        ("validation.json", "validation"),
        ("val.jsonl", "val"),
        ("test_gen.parquet", "test_gen"),
        ("test/0000.parquet", "test"),
        ("training.jsonl", None),
        ("chats.jsonl", None),
        ("latest.jsonl", None),
        ("trains/0.jsonl", None),
    ],
)
def test_the_split_in_a_name(path: str, split: str | None) -> None:
    assert split_of(PurePosixPath(path)) == split


def split_names(path: str | list[str], root: Path, split: str | None) -> list[str]:
    storage = locate(path, key="data.path")
    return names(storage.leaves(split, key="data.path", split_key="data.split"), root)


def test_the_splits_of_a_directory(tmp_path: Path) -> None:
    for name in ("train-0.jsonl", "train-1.jsonl", "test-0.jsonl"):
        write(tmp_path / "data" / name, chats(1))
    (tmp_path / "dataset_infos.json").write_text(json.dumps({"a": 1}))
    path = str(tmp_path)
    assert split_names(path, tmp_path, None) == ["data/train-0.jsonl", "data/train-1.jsonl"]
    assert split_names(path, tmp_path, "test") == ["data/test-0.jsonl"]
    with pytest.raises(
        DataError, match=r"data\.split=val: .* has no such split; it has test, train"
    ):
        split_names(path, tmp_path, "val")


def test_files_for_training_only_are_no_splits(tmp_path: Path) -> None:
    for name in ("train-0.jsonl", "train-1.jsonl", "more.jsonl"):
        write(tmp_path / name, chats(1))
    assert split_names(str(tmp_path), tmp_path, None) == [
        "more.jsonl", "train-0.jsonl", "train-1.jsonl",
    ]  # fmt: skip
    with pytest.raises(
        DataError, match=r"data\.split=train: .* is not divided into splits; remove"
    ):
        split_names(str(tmp_path), tmp_path, "train")


def test_a_file_of_no_split_among_others(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl", "more.jsonl"):
        write(tmp_path / name, chats(1))
    with pytest.raises(
        DataError, match=r"has the splits test, train, and more\.jsonl belongs to no"
    ):
        locate(str(tmp_path), key="data.path")


def test_no_split_is_called_train(tmp_path: Path) -> None:
    for name in ("train_sft.jsonl", "train_gen.jsonl", "test_sft.jsonl"):
        write(tmp_path / name, chats(1))
    with pytest.raises(DataError, match=r"splits, test_sft, train_gen, train_sft; say .* data\.sp"):
        split_names(str(tmp_path), tmp_path, None)
    assert split_names(str(tmp_path), tmp_path, "train_sft") == ["train_sft.jsonl"]


def test_directories_with_splits_in_a_list(tmp_path: Path) -> None:
    for name in ("a/train.jsonl", "a/test.jsonl", "b/train.jsonl", "b/val.jsonl", "c/x.jsonl"):
        write(tmp_path / name, chats(1))
    both = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert split_names(both, tmp_path, None) == ["a/train.jsonl", "b/train.jsonl"]
    assert split_names(both, tmp_path, "val") == ["b/val.jsonl"]
    with pytest.raises(DataError, match=r"/a is divided into splits and others are not; put them"):
        locate([*both, str(tmp_path / "c")], key="data.path")


# --- subsets


def test_a_subset_of_records() -> None:
    assert Subset().range(7) == (0, 7)
    assert Subset(start=2, stop=5).range(7) == (2, 5)
    assert Subset(share=(0.25, 0.75)).range(8) == (2, 6)
    # The middle half, of that the first half: the second quarter.
    assert Subset(share=(0.25, 0.75)).within(Subset(share=(0.0, 0.5))).range(8) == (2, 4)
    assert Subset(start=2, stop=6).within(Subset(share=(0.5, 1.0))).range(8) == (4, 6)
    with pytest.raises(ValueError, match="there are 4 records"):
        Subset(start=2, stop=5).range(4)
