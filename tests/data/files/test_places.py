"""Places behind msc://: the same records as on this machine, through a profile for local files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data.errors import DataError
from data.files.places import RemotePlace, place, split_pattern
from data.files.storage import locate
from data.sources.files import FilesSource
from tests.data.files.stores import chats, write


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that is the profile ``bucket`` of the multi-storage client."""
    pytest.importorskip("megatron.energon")
    root = tmp_path_factory.mktemp("msc")
    config = {
        "profiles": {
            "bucket": {
                "storage_provider": {"type": "file", "options": {"base_path": str(root / "bucket")}}
            }
        }
    }
    (root / "msc.json").write_text(json.dumps(config))
    patch = pytest.MonkeyPatch()
    patch.setenv("MSC_CONFIG", str(root / "msc.json"))
    names = ("a.jsonl", "sub/b.parquet", "sub/c.json.gz", "sub/.hidden.jsonl")
    for name, tag in zip(names, "abch", strict=True):
        write(root / "bucket" / name, chats(3, tag=tag))
    for name in ("train-0.jsonl", "test-0.jsonl"):
        write(root / "bucket" / "split" / name, chats(2, tag=name[:5]))
    (root / "bucket" / "m.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\n"
        "splits: {train: {path: a.jsonl}, val: {path: sub/b.parquet}}\n"
    )
    yield root / "bucket"
    patch.undo()


def questions(path: str | list[str], cache: Path, split: str | None = None) -> list[str]:
    source = FilesSource(path=path, split=split, val_fraction=0.0, cache_dir=str(cache))
    train = source.prepare().train
    lines = (json.loads(train.read(i)) for i in range(len(train)))
    return [line["messages"][0]["content"] for line in lines]


def tagged(tags: str, n: int = 3) -> list[str]:
    return [f"{tag}{k}" for tag in tags for k in range(n)]


@pytest.mark.parametrize(
    ("path", "tags"),
    [
        ("msc://bucket/a.jsonl", "a"),
        ("msc://bucket/sub", "bc"),
        ("msc://bucket/sub/*.parquet", "b"),
        ("msc://bucket/**/c.json.gz", "c"),
        ("msc://bucket/m.yaml", "a"),
    ],
)
def test_records_from_a_store(bucket: Path, tmp_path: Path, path: str, tags: str) -> None:
    assert questions(path, tmp_path) == tagged(tags)


def test_local_and_remote_together(bucket: Path, tmp_path: Path) -> None:
    local = write(tmp_path / "x.jsonl", chats(3, tag="x"))
    assert questions([str(local), "msc://bucket/a.jsonl"], tmp_path) == tagged("xa")


def test_splits_of_a_remote_directory(bucket: Path, tmp_path: Path) -> None:
    assert questions("msc://bucket/split", tmp_path) == ["train0", "train1"]
    assert questions("msc://bucket/split", tmp_path, "test") == ["test-0", "test-1"]
    assert questions("msc://bucket/m.yaml", tmp_path, "val") == tagged("b")


def test_a_remote_file_that_changes(bucket: Path, tmp_path: Path) -> None:
    write(bucket / "changing.jsonl", chats(2, tag="x"))
    assert questions("msc://bucket/changing.jsonl", tmp_path) == tagged("x", 2)
    write(bucket / "changing.jsonl", chats(4, tag="y"))
    assert questions("msc://bucket/changing.jsonl", tmp_path) == tagged("y", 4)


def test_source_ids_of_remote_files(bucket: Path, tmp_path: Path) -> None:
    source = FilesSource(path="msc://bucket/a.jsonl", val_fraction=0.0, cache_dir=str(tmp_path))
    assert source.prepare().train.source_id(2) == "a.jsonl:3"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("msc://bucket/nope.jsonl", r"^data\.path=msc://bucket/nope\.jsonl does not exist"),
        ("msc://bucket/nope/*.jsonl", r"^data\.path=msc://bucket/nope/\*\.jsonl: no file of rec"),
        ("msc://nobody/a.jsonl", r"^data\.path=msc://nobody/a\.jsonl: cannot be reached .* MSC_"),
    ],
)
def test_what_is_not_there_is_named(bucket: Path, path: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        locate(path, key="data.path")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("is_file", "msc://bucket/a.jsonl"),
        ("walk", "msc://bucket/sub"),
        ("stat", "msc://bucket/sub/c.json.gz"),
        ("open", "msc://bucket/a.jsonl"),
    ],
)
def test_what_a_store_raises_is_said(
    bucket: Path, tmp_path: Path, method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from megatron.energon.epathlib import EPath

    def refuse(*_: object) -> None:
        raise RuntimeError("no credentials\nat all")

    monkeypatch.setattr(EPath, method, refuse)
    with pytest.raises(
        DataError,
        match=rf"^data\.path={path} cannot be read \(RuntimeError: no credentials\); [^\n]+$",
    ):
        questions(path, tmp_path)


def test_the_state_of_a_remote_file(bucket: Path) -> None:
    found = place("msc://bucket/a.jsonl")
    assert isinstance(found, RemotePlace)
    assert found.local is None
    assert found.state()[0] == str((bucket / "a.jsonl").stat().st_size)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("a/b*/c", ("a", "b*/c")),
        ("*.jsonl", (".", "*.jsonl")),
        ("/*.jsonl", ("/", "*.jsonl")),
        ("/a/*", ("/a", "*")),
        ("msc://p/a/*", ("msc://p/a", "*")),
        ("msc://p/**/b", ("msc://p", "**/b")),
    ],
)
def test_a_pattern_starts_at_its_first_wildcard(path: str, parts: tuple[str, str]) -> None:
    assert split_pattern(path) == parts
