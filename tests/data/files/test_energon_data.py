"""What Energon has prepared, and its metadatasets: the same samples that Energon itself reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from data.errors import DataError
from data.sources.files import FilesSource
from tests.data.files.stores import chats, write, write_tar


def shard(path: Path, first: int, n: int) -> None:
    records = enumerate(chats(first + n)[first:], start=first)
    write_tar(path, ((f"{i:04d}.json", json.dumps(record).encode()) for i, record in records))


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """Three shards of four chats, prepared as ``energon prepare`` does."""
    root = tmp_path / "wds"
    root.mkdir()
    for number in range(3):
        shard(root / f"s{number}.tar", 4 * number, 4)
    meta = root / ".nv-meta"
    meta.mkdir()
    write_yaml(meta / "dataset.yaml", {"__module__": "megatron.energon",
                                       "__class__": "CrudeWebdataset"})  # fmt: skip
    write_yaml(meta / "split.yaml", {
        "split_parts": {"train": ["s{0..1}.tar"], "val": ["s2.tar"], "test": []},
        "exclude": ["s0.tar/0001"],
    })  # fmt: skip
    return root


def write_yaml(path: Path, content: Any) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


def questions(source: FilesSource, *, val: bool = False) -> list[int]:
    data = source.prepare()
    records = data.val if val else data.train
    lines = (json.loads(records.read(i)) for i in range(len(records)))
    return [int(line["messages"][0]["content"][1:]) for line in lines]


def source(path: Path, **settings: Any) -> FilesSource:
    cache = str(path.parent / "cache")
    return FilesSource(path=str(path), cache_dir=cache, **{"val_fraction": 0.0, **settings})


def test_the_splits_of_a_prepared_directory(prepared: Path) -> None:
    assert questions(source(prepared)) == [0, 2, 3, 4, 5, 6, 7]
    assert questions(source(prepared, split="val")) == [8, 9, 10, 11]
    assert questions(source(prepared, val_split="val"), val=True) == [8, 9, 10, 11]


@pytest.mark.parametrize("name", ["sample_loader", "field_map", "part_filter", "subflavors"])
def test_what_makes_samples_differently_is_refused(prepared: Path, name: str) -> None:
    write_yaml(prepared / ".nv-meta" / "dataset.yaml", {"__class__": "X", name: {"a": "b"}})
    with pytest.raises(DataError, match=rf"dataset\.yaml has {name}, which is not honoured"):
        source(prepared).prepare()


def test_a_directory_that_is_half_prepared(prepared: Path) -> None:
    (prepared / ".nv-meta" / "split.yaml").unlink()
    with pytest.raises(DataError, match=r"has no split\.yaml with split_parts; prepare the direct"):
        source(prepared).prepare()


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"split_parts": {"train": 3}}, r"split_parts\.train=3: must be a list of names"),
        ({"split_parts": {"train": "s0.tar"}}, r"split_parts\.train=s0\.tar: must be a list of n"),
        (
            {"split_parts": {"train": ["s0.tar"]}, "exclude": "s1.tar"},
            r"exclude=s1\.tar: must be a",
        ),
        (
            {"split_parts": {"train": ["s{0..1.tar"]}},
            r"split_parts\.train: s\{0\.\.1\.tar has a br",
        ),
        ({"split_parts": {"train": ["s9.tar"]}}, r"/wds/s9\.tar cannot be read \(No such file"),
        ({"split_parts": {"train": ["s0.txt"]}}, r"/wds/s0\.txt: its name does not say what it is"),
    ],
)
def test_a_split_file_that_is_wrong(prepared: Path, split: Any, message: str) -> None:
    write_yaml(prepared / ".nv-meta" / "split.yaml", split)
    where = rf"^data\.path={prepared}: \.nv-meta/split\.yaml: .*"
    with pytest.raises(DataError, match=where + message):
        source(prepared).prepare()


def test_a_split_of_which_all_is_excluded(prepared: Path) -> None:
    split = {"split_parts": {"train": ["s0.tar"]}, "exclude": [f"s0.tar/000{i}" for i in range(4)]}
    write_yaml(prepared / ".nv-meta" / "split.yaml", split)
    with pytest.raises(DataError, match=r"^data\.path=.*/wds: all its records are excluded, or"):
        source(prepared).prepare()


# --- metadatasets


def metadataset(path: Path, **splits: Any) -> Path:
    content = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}
    return write_yaml(path, content)


@pytest.fixture
def files(prepared: Path) -> Path:
    """Beside the shards, two JSONL files of ten chats each: from 100, and from 200."""
    for name, first in (("a", 100), ("b", 200)):
        write(prepared.parent / f"{name}.jsonl", chats(first + 10)[first:])
    return prepared.parent


def shares(path: Path, **settings: Any) -> list[tuple[int, int]]:
    train = source(path, **settings).prepare().train
    return [(share.rows, share.per_epoch) for share in train.shares]


def test_a_single_data_set(files: Path) -> None:
    path = metadataset(files / "m.yaml", train={"path": "wds"}, val={"path": "a.jsonl"})
    assert questions(source(path)) == [0, 2, 3, 4, 5, 6, 7]
    assert questions(source(path, val_split="val"), val=True) == list(range(100, 110))


def test_a_split_of_another_name(files: Path) -> None:
    path = metadataset(files / "m.yaml", train={"path": "wds", "split_part": "val"})
    assert questions(source(path)) == [8, 9, 10, 11]


def test_a_blend_keeps_its_proportions(files: Path) -> None:
    blend = [{"path": "a.jsonl", "weight": 3}, {"path": "b.jsonl", "weight": 1}]
    path = metadataset(files / "m.yaml", train={"blend": blend})
    assert questions(source(path)) == [*range(100, 110), *range(200, 210)]
    assert shares(path) == [(10, 15), (10, 5)]  # 20 conversations, three of four from a


def test_repetitions(files: Path) -> None:
    blend = [{"path": "a.jsonl", "repetitions": 2}, {"path": "b.jsonl", "repetitions": 0.5}]
    path = metadataset(files / "m.yaml", train={"blend_epochized": blend})
    assert shares(path) == [(10, 20), (10, 5)]


def test_subsets(files: Path) -> None:
    blend = [
        {"path": "a.jsonl", "subset": {"range": ["20%", "50%"]}},
        {"path": "b.jsonl", "subset": {"range": [7, "end"]}},
        {"path": "wds", "subset": {"range": [1, 3]}},
    ]
    path = metadataset(files / "m.yaml", train={"blend_epochized": blend})
    assert questions(source(path)) == [102, 103, 104, 207, 208, 209, 2, 3]


def test_one_file_in_two_parts(files: Path) -> None:
    halves = [{"path": "a.jsonl", "subset": {"range": r}} for r in (["0%", "50%"], ["50%", "100%"])]
    path = metadataset(files / "m.yaml", train=halves[0], val=halves[1])
    assert questions(source(path)) == list(range(100, 105))
    assert questions(source(path, val_split="val"), val=True) == list(range(105, 110))
    both = metadataset(files / "n.yaml", train={"blend_epochized": halves})
    assert questions(source(both)) == list(range(100, 110))
    twice = metadataset(files / "o.yaml", train={"blend_epochized": [halves[0], halves[0]]})
    with pytest.raises(DataError, match=r"^data\.path: holds a\.jsonl:1 twice"):
        source(twice).prepare()


def test_nested(files: Path) -> None:
    blend = [{"path": "a.jsonl", "weight": 1}, {"path": "b.jsonl", "weight": 3}]
    metadataset(files / "inner.yaml", train={"blend": blend})
    outer = [{"path": "inner.yaml", "weight": 1}, {"path": "wds", "split_part": "val", "weight": 1}]
    path = metadataset(files / "m.yaml", train={"blend": outer})
    # Half of 24 from the shard of four; of the rest a quarter from a.
    assert shares(path) == [(10, 3), (10, 9), (4, 12)]
    half = {"blend": outer, "subset": {"range": ["0%", "50%"]}}
    assert shares(metadataset(files / "n.yaml", train=half)) == [(5, 2), (5, 5), (2, 6)]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"join": []}, r"splits\.train\.join: is not honoured; known here: path, split_part, sub"),
        (
            {"path": "a.jsonl", "subflavors": {"x": 1}},
            r"splits\.train\.subflavors: is not honoured",
        ),
        (
            {"blend": [{"path": "a.jsonl", "aux": {}}]},
            r"splits\.train\.blend\[0\]\.aux: is not hon",
        ),
        ({"blend": [{"path": "a.jsonl", "repetitions": 2}]}, r"repetitions: is not honoured"),
        (
            {"blend": [{"path": "a.jsonl", "weight": 0}]},
            r"blend\[0\]\.weight: is 0 and must be a n",
        ),
        ({"blend": []}, r"splits\.train\.blend: must be a list of data sets"),
        ({"blend": ["a.jsonl"]}, r"splits\.train\.blend\[0\]: must be a mapping"),
        ("a.jsonl", r"splits\.train: must be a mapping with path, blend or blend_epochized"),
        ({"path": 3}, r"splits\.train\.path: must be the path of a data set"),
        (
            {"path": "nope.jsonl"},
            r"^data\.path=.*/m\.yaml: splits\.train\.path=.*/nope\.jsonl does not exist; set spl",
        ),
        (
            {"path": "s3://x/a.jsonl"},
            r"^data\.path=.*/m\.yaml: splits\.train\.path=s3://x/a\.jsonl: of URLs only msc",
        ),
        ({"path": "a.jsonl", "split_part": "val"}, r"split_part=val: .*is not divided into splits"),
        (
            {"path": "wds", "split_part": ["val"]},
            r"split_part: is \[val\] and must be the name of a split",
        ),
        (
            {"path": "wds", "split_part": "test"},
            r"^data\.path=.*/m\.yaml holds no conversations, there are no files, or all are empty",
        ),
        ({"path": "m.yaml"}, r"splits\.train\.path=.*/m\.yaml: splits\.train: is a part of itself"),
        (
            {"blend_epochized": [{"path": "a.jsonl", "repetitions": float("inf")}]},
            r"repetitions: is inf and must be a number above 0 and below 1,000,000",
        ),
        (
            {"blend": [{"path": "a.jsonl"}, {"path": "wds", "split_part": "test"}]},
            r"\.blend\[1\]\.path=.*/wds: \.nv-meta/split\.yaml: has no conversations to train on",
        ),
        (
            {"blend_epochized": [{"path": "a.jsonl", "repetitions": 0.01}]},
            r"blend_epochized\[0\]\.path=.*/a\.jsonl: of its 10 conversations, its weight leaves n",
        ),
        (
            {"path": "a.jsonl", "subset": {"range": [5, 50]}},
            r"the subset from record 5 to 50 cannot be taken of it, there are 10 records",
        ),
        (
            {"path": "a.jsonl", "subset": {"range": [50, "end"]}},
            r"the subset from record 50 to end cannot be taken of it, there are 10 records",
        ),
        (
            {"path": "a.jsonl", "subset": {"range": [10, "end"]}},
            r"/m\.yaml: all its records are excluded, or outside of its subset",
        ),
        (
            {"path": "a.jsonl", "subset": {"range": [5, 3]}},
            r"subset: is \{range: \[5, 3\]\} and must ",
        ),
        (
            {"path": "a.jsonl", "subset": {"range": [5, -1]}},
            r"subset: is .* the first below the last",
        ),
        (
            {"path": "a.jsonl", "subset": {"range": ["5", 7]}},
            r"subset: is .* and must be \{range: \[25%",
        ),
        (
            {"path": "a.jsonl", "subset": {"range": [0.5, 1]}},
            r"subset: is .* and must be \{range: \[25%",
        ),
        ({"path": "a.jsonl", "subset": {"ratio": 1}}, r"subset: is .* and must be \{range: \[25%"),
    ],
)
def test_what_cannot_be_honoured_is_refused(files: Path, node: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        source(metadataset(files / "m.yaml", train=node)).prepare()


def test_a_file_of_a_metadataset_that_cannot_be_used(files: Path) -> None:
    (files / "a.jsonl").write_bytes(b"")
    (files / "c.parquet").write_bytes(b"no")
    told = r"m\.yaml: splits\.train\.path=.*/a\.jsonl holds no conversations, it is empty"
    for name, why in (("a.jsonl", told), ("c.parquet", r"m\.yaml cannot be used: not a Parquet")):
        path = metadataset(files / "m.yaml", train={"path": name})
        with pytest.raises(DataError, match=rf"^data\.path=.*/{why}"):
            source(path).prepare()


def test_metadatasets_in_one_another(files: Path) -> None:
    metadataset(files / "inner.yaml", train={"path": "outer.yaml", "split_part": "more"})
    outer = metadataset(
        files / "outer.yaml", train={"path": "inner.yaml"}, more={"path": "a.jsonl"}
    )
    assert questions(source(outer)) == list(range(100, 110))  # a part of itself, but not in a ring
    metadataset(files / "inner.yaml", train={"path": "outer.yaml"})
    ring = r"outer\.yaml: splits\.train\.path=.*inner\.yaml: .*outer\.yaml: splits\.train: is a p"
    with pytest.raises(DataError, match=ring):
        source(outer).prepare()
    metadataset(files / "inner.yaml", train={"path": "nope.jsonl"})
    with pytest.raises(
        DataError, match=r"outer\.yaml: splits.*inner\.yaml: splits.*nope\.jsonl does not exist"
    ):
        source(outer).prepare()


def test_what_is_no_metadataset(files: Path) -> None:
    for content in ({"splits": {"train": {}}}, {"__class__": "Metadataset", "splits": {}}, [1]):
        write_yaml(files / "m.yaml", content)
        with pytest.raises(
            DataError, match=r"m\.yaml: is no metadataset; it needs __class__: Meta"
        ):
            source(files / "m.yaml").prepare()
    (files / "m.yaml").write_text("a: [")
    with pytest.raises(DataError, match=r"m\.yaml: is no valid YAML, line 1 \([^\n]*\)$"):
        source(files / "m.yaml").prepare()
    (files / "m.yaml").write_bytes(b"a: \xff")
    with pytest.raises(DataError, match=r"m\.yaml: is no valid YAML \([^\n]*\)$"):
        source(files / "m.yaml").prepare()
    extra = {"__class__": "MetadatasetV2", "splits": {"train": {"path": "a.jsonl"}}, "seed": 1}
    write_yaml(files / "m.yaml", extra)
    with pytest.raises(DataError, match=r"seed: is not honoured; known here: __module__, __class"):
        source(files / "m.yaml").prepare()


@pytest.mark.slow
def test_energon_reads_the_same(files: Path) -> None:
    """Energon's own preparation of the same shards gives the same records, by its own reader."""
    energon = pytest.importorskip("megatron.energon")
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors import BaseWebdatasetFactory

    root = files / "theirs"
    root.mkdir()
    for number in range(3):
        shard(root / f"s{number}.tar", 4 * number, 4)
    BaseWebdatasetFactory.prepare_dataset(
        root,
        [f"s{number}.tar" for number in range(3)],
        split_parts_ratio=[("train", 2), ("val", 1)],
        progress_fn=lambda shards, *_: shards,
        tar_index_only=False,
        shuffle_seed=None,
        workers=1,
    )
    write_yaml(root / ".nv-meta" / "dataset.yaml", {
        "__module__": "megatron.energon", "__class__": "CrudeWebdataset",
    })  # fmt: skip
    path = metadataset(files / "m.yaml", train={"path": "theirs"}, val={"path": "theirs"})
    for split in ("train", "val"):
        loaded = energon.get_val_dataset(
            EPath(str(path)),
            split_part=split,
            worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=0),
            batch_size=None,
            task_encoder=_raw(energon),
        )
        samples = energon.get_loader(loaded)
        theirs = [int(s["json"]["messages"][0]["content"][1:]) for s in samples]
        assert questions(source(path, split=split)) == theirs
        assert theirs


def _raw(energon: Any) -> Any:
    class Raw(energon.DefaultTaskEncoder):  # type: ignore[misc, name-defined]
        cookers = [energon.Cooker(energon.stateless(lambda sample: sample))]  # noqa: RUF012

    return Raw()
