import dataclasses
import json
import multiprocessing
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import data.sources.chitchat as chitchat
from data.accounting import Accounting
from data.chat import ConversationEncoder, Overlong
from data.errors import DataError
from data.formats import Parser
from data.jsonl import Records, write_jsonl
from data.sources.base import DataSource, PreparedData
from data.sources.chitchat import ChitchatSource, select, to_messages
from data.sources.files import FilesSource
from data.sources.mixture import MixtureSource
from data.targets import LossOn
from data.tokenizers import load_tokenizer

CONF = Path(__file__).parents[2] / "conf" / "data"
SOURCES: list[tuple[str, type[DataSource]]] = [
    ("chitchat", ChitchatSource),
    ("files", FilesSource),
    ("mixture", MixtureSource),
]
GIVEN = {"files": {"path": "chat.jsonl"}, "mixture": {"sets": ["chat.jsonl"]}, "chitchat": {}}


def chats(n: int, tag: str = "") -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"{tag}{k}"}, {"role": "assistant"}]}
        for k in range(n)
    ]


def contents(records: Records) -> list[bytes]:
    return [records.read(i) for i in range(len(records))]


# --- settings


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("val_fraction", 1.0, r"data\.val_fraction=1\.0: must be at least 0 and below 1"),
        ("val_fraction", -0.1, r"data\.val_fraction=-0\.1: must be"),
        ("val_fraction", float("nan"), r"data\.val_fraction=nan: must be"),
        ("limit", 1, r"data\.limit=1: must be at least 2"),
        ("limit", 0, r"data\.limit=0: must be at least 2"),
        ("num_workers", -1, r"data\.num_workers=-1: must be at least 0"),
        ("max_bad_fraction", 1.5, r"data\.max_bad_fraction=1\.5: must be from 0 to 1, or null"),
        ("max_bad_fraction", -0.1, r"data\.max_bad_fraction=-0\.1: must be from 0 to 1"),
        ("max_bad_fraction", float("nan"), r"data\.max_bad_fraction=nan: must be from 0 to 1"),
        ("loss_on", "user", r"data\.loss_on=user: must be one of assistant, last, all"),
        ("format", "openai", r"data\.format=openai: there is no such format; choose auto, alpaca"),
        ("columns", {"q": "a"}, r"data\.columns=\{q: a\}: q is no key of any format"),
        ("columns", {"prompt": ["a"]}, r"data\.columns=\{prompt: \[a\]\}: on the right of a colon"),
        ("val_path", 3, r"data\.val_path=3: must be a file, a directory, a pattern"),
        ("val_path", [], r"data\.val_path=\[\]: must be a file"),
        ("path", {"a": 1}, r"data\.path=\{a: 1\}: must be a file, a directory"),
        ("path", None, r"data\.path=null: must be a file"),
        ("overlong", "cut", r"data\.overlong=cut: must be one of drop, truncate, error"),
    ],
)
def test_a_wrong_setting_is_named(key: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FilesSource(**{"path": "chat.jsonl", key: value})


def test_defaults() -> None:
    source = ChitchatSource()
    assert (source.tokenizer, source.overlong, source.val_fraction) == (
        None,
        Overlong.TRUNCATE,
        0.05,
    )
    assert (source.format, source.columns, source.loss_on) == ("auto", None, LossOn.ASSISTANT)
    assert source.max_bad_fraction == 0.5
    assert (source.limit, source.shuffle, source.num_workers) == (None, True, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        source.limit = 3  # type: ignore[misc]


@pytest.mark.parametrize(("typed", "member"), [(m.value, m) for m in LossOn])
def test_what_people_type_for_loss_on(typed: str, member: LossOn) -> None:
    schema = OmegaConf.structured(ChitchatSource)
    source = OmegaConf.to_object(OmegaConf.merge(schema, {"loss_on": typed}))
    assert isinstance(source, ChitchatSource)
    assert source.loss_on is member
    assert ChitchatSource(loss_on=typed).loss_on is member  # type: ignore[arg-type]


@pytest.mark.parametrize(("typed", "member"), [(m.value, m) for m in Overlong])
def test_what_people_type_for_overlong(typed: str, member: Overlong) -> None:
    schema = OmegaConf.structured(ChitchatSource)
    source = OmegaConf.to_object(OmegaConf.merge(schema, {"overlong": typed}))
    assert isinstance(source, ChitchatSource)
    assert source.overlong is member
    assert ChitchatSource(overlong=typed).overlong is member  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "cls"), SOURCES)
def test_yaml_and_class_agree(
    name: str, cls: type[DataSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOWAGE_CACHE", raising=False)
    yaml = OmegaConf.load(CONF / f"{name}.yaml")
    assert yaml.pop("_target_") == f"{cls.__module__}.{cls.__qualname__}"  # type: ignore[union-attr]
    schema = OmegaConf.structured(cls)
    assert set(yaml) == set(schema)
    for field in dataclasses.fields(cls):
        required = field.default is field.default_factory is dataclasses.MISSING
        assert OmegaConf.is_missing(yaml, field.name) == required
    yaml.merge_with(GIVEN[name])  # type: ignore[union-attr]
    assert OmegaConf.to_object(OmegaConf.merge(schema, yaml)) == cls(**GIVEN[name])


@pytest.mark.parametrize(("name", "cls"), SOURCES)
def test_yaml_says_what_each_field_is(name: str, cls: type[DataSource]) -> None:
    first, target, *fields = (CONF / f"{name}.yaml").read_text().splitlines()
    assert re.fullmatch(rf"# .+: python train\.py data={name}.*", first)
    assert target.startswith("_target_: ")
    assert len(fields) == len(dataclasses.fields(cls))
    assert all(re.fullmatch(r"\w+: .+ # .+", field) for field in fields)


@pytest.mark.parametrize("override", [{"limit": "many"}, {"shufle": True}])
def test_the_schema_refuses_wrong_types_and_unknown_keys(override: dict[str, Any]) -> None:
    with pytest.raises(OmegaConfBaseException):
        OmegaConf.merge(OmegaConf.structured(FilesSource), override)
    assert OmegaConf.structured(FilesSource)._get_node("path")._value() == MISSING


def test_jsonl_is_the_same_as_files() -> None:
    with initialize_config_dir(str(CONF.parent), version_base="1.3"):
        composed = [
            compose("config", [f"data={name}", "data.path=chat.jsonl", "run_dir=r"]).data
            for name in ("jsonl", "files")
        ]
    assert composed[0] == composed[1]


@pytest.mark.parametrize("key", ["columns", "template_args"])
def test_mappings_can_be_written_on_the_command_line(key: str) -> None:
    words = ["data=files", "data.path=c.jsonl", f"data.{key}={{prompt: question}}", "run_dir=r"]
    with initialize_config_dir(str(CONF.parent), version_base="1.3"):
        assert compose("config", words).data[key] == {"prompt": "question"}


# --- files


def test_a_file_is_split(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "chat.jsonl", chats(100))
    prepared = FilesSource(path=str(tmp_path / "chat.jsonl"), val_fraction=0.1).prepare()
    assert (len(prepared.train), len(prepared.val)) == (90, 10)
    assert not set(contents(prepared.train)) & set(contents(prepared.val))
    assert (prepared.name, prepared.notes) == ("chat.jsonl", {"rows": 100})


def test_a_validation_file_is_used_whole(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "chat.jsonl", chats(20))
    write_jsonl(tmp_path / "val.jsonl", chats(7, "v"))
    prepared = FilesSource(
        path=str(tmp_path / "chat.jsonl"), val_path=str(tmp_path / "val.jsonl"), limit=5
    ).prepare()
    assert [prepared.train.source_id(i) for i in range(len(prepared.train))] == [
        f"chat.jsonl:{n}" for n in range(1, 6)
    ]
    assert [prepared.val.source_id(i) for i in range(len(prepared.val))] == [
        f"val.jsonl:{n}" for n in range(1, 8)
    ]


def test_one_conversation_needs_no_split_beside_a_validation_file(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "chat.jsonl", chats(1))
    path = str(tmp_path / "chat.jsonl")
    assert len(FilesSource(path=path, val_path=path).prepare().train) == 1
    with pytest.raises(DataError, match=r"data\.val_path"):
        FilesSource(path=path).prepare()


def test_the_key_of_a_missing_file_is_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "chat.jsonl", chats(3))
    with pytest.raises(DataError, match=r"^data\.path=.*nope"):
        FilesSource(path=str(tmp_path / "nope.jsonl")).prepare()
    with pytest.raises(DataError, match=r"^data\.val_path=.*nope"):
        FilesSource(
            path=str(tmp_path / "chat.jsonl"), val_path=str(tmp_path / "nope.jsonl")
        ).prepare()


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("x/a", "x/b", "y/a"):
        (tmp_path / folder).mkdir(parents=True)
        write_jsonl(tmp_path / folder / "c.jsonl", chats(1, folder))
    write_jsonl(tmp_path / "d.jsonl", chats(1))
    train = FilesSource(path=str(tmp_path), val_fraction=0.0).prepare().train
    assert [train.source_id(i) for i in range(4)] == [
        "d.jsonl:1", "x/a/c.jsonl:1", "b/c.jsonl:1", "y/a/c.jsonl:1",
    ]  # fmt: skip


def test_a_split_over_several_files_keeps_equal_ones_together(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_jsonl(tmp_path / f"{name}.jsonl", [*chats(10, name), *chats(10, "same")])
    prepared = FilesSource(path=str(tmp_path), val_fraction=0.3).prepare()
    assert len(prepared.train) + len(prepared.val) == 60
    assert not set(contents(prepared.train)) & set(contents(prepared.val))
    assert prepared.notes == {"rows": 60}
    assert prepared.name == "3 files"


def test_validation_from_a_split(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", chats(5, "t"))
    write_jsonl(tmp_path / "test.jsonl", chats(3, "v"))
    prepared = FilesSource(path=str(tmp_path), val_split="test").prepare()
    assert len(set(contents(prepared.train))) == 5
    assert [prepared.val.source_id(i) for i in range(3)] == [f"test.jsonl:{n}" for n in (1, 2, 3)]
    other = tmp_path / "other"
    other.mkdir()
    write_jsonl(other / "train.jsonl", chats(4))
    write_jsonl(other / "test.jsonl", chats(2))
    path = str(tmp_path / "train.jsonl")
    both = FilesSource(path=path, val_path=str(other), val_split="test").prepare()
    assert (len(both.train), len(both.val)) == (5, 2)
    with pytest.raises(
        DataError, match=r"^data\.val_path=.*into splits, test, train; say which .*"
    ):
        FilesSource(path=path, val_path=str(other)).prepare()
    with pytest.raises(DataError, match=r"^data\.val_split=test: .* is not divided into splits"):
        FilesSource(path=path, val_split="test").prepare()


# --- mixture


def mixture(tmp_path: Path, *sets: Any, **settings: Any) -> PreparedData:
    cache = str(tmp_path / "cache")
    settings = {"val_fraction": 0.0, "cache_dir": cache, **settings}
    return MixtureSource(sets=list(sets), **settings).prepare()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    for name, n in (("a", 10), ("b", 20)):
        write_jsonl(tmp_path / f"{name}.jsonl", chats(n, name))
    return str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")


def test_weights(tmp_path: Path, pair: tuple[str, str]) -> None:
    a, b = pair
    prepared = mixture(tmp_path, {"path": a, "weight": 2}, {"path": b, "weight": 0.25})
    assert len(prepared.train) == 30
    assert [(s.rows, s.per_epoch) for s in prepared.train.shares] == [(10, 20), (20, 5)]
    assert prepared.name == "2 data sets"
    assert prepared.notes == {
        "rows": 30, "rows_of_sets": {"data.sets[0].path": 10, "data.sets[1].path": 20},
    }  # fmt: skip


def test_sets_without_weights_come_once(tmp_path: Path, pair: tuple[str, str]) -> None:
    prepared = mixture(tmp_path, *pair)
    assert prepared.train.shares == ()
    assert len(prepared.train) == 30


def test_weights_count_what_is_left_after_the_split(tmp_path: Path, pair: tuple[str, str]) -> None:
    a, b = pair
    sets = [{"path": a, "weight": 3}, {"path": b}]
    prepared = mixture(tmp_path, *sets, val_fraction=0.3)
    assert len(prepared.val) == 9 and prepared.val.shares == ()
    first, second = prepared.train.shares
    assert (first.per_epoch, second.per_epoch) == (3 * first.rows, second.rows)
    assert first.rows + second.rows == 21


def test_a_limit_is_shared_out(tmp_path: Path, pair: tuple[str, str]) -> None:
    train = mixture(tmp_path, *pair, limit=6).train
    assert [train.source_id(i) for i in range(6)] == [
        "a.jsonl:1", "a.jsonl:2", "b.jsonl:1", "b.jsonl:2", "b.jsonl:3", "b.jsonl:4",
    ]  # fmt: skip


def test_sets_of_different_forms(tmp_path: Path, pair: tuple[str, str]) -> None:
    write_jsonl(tmp_path / "c.jsonl", [{"q": "hi", "a": "yo"}, {"q": "ho", "a": "yo"}])
    columns = {"prompt": "q", "completion": "a"}
    sets = [pair[0], {"path": str(tmp_path / "c.jsonl"), "columns": columns, "weight": 0.5}]
    train = mixture(tmp_path, *sets).train
    # One parser for all: the set's own columns travel with its lines.
    parsed = [Parser()(train.read(i)) for i in (10, 11)]
    assert [p.messages[0].content for p in parsed] == ["hi", "ho"]  # type: ignore[union-attr]
    assert train.source_id(11) == "c.jsonl:2"


def test_the_splits_of_every_set(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for name, n in (("train", 4), ("extra", 2), ("test", 3)):
            path = tmp_path / folder / f"{'train_x' if name == 'extra' else name}.jsonl"
            write_jsonl(path, chats(n, f"{folder}{name}"))
    sets = [str(tmp_path / "a"), {"path": str(tmp_path / "b"), "split": "train_x"}]
    prepared = mixture(tmp_path, *sets, val_split="test")
    assert (len(prepared.train), len(prepared.val)) == (6, 6)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([], r"data\.sets=\[\]: must be a list, \[\{path: a\.jsonl, weight: 2\}, b\.jsonl\]"),
        (3, r"data\.sets=3: must be a list"),
        ([3], r"data\.sets\[0\]=3: must be a path, or a mapping"),
        ([{"weight": 2}], r"data\.sets\[0\]\.path=null: must be a file"),
        (
            ["a", {"path": "b", "wieght": 2}],
            r"data\.sets\[1\]\.wieght=2: there is no such key\. Did you mean data\.sets\[1\]\.wei",
        ),
        ([{"path": "a", "weight": 0}], r"data\.sets\[0\]\.weight=0: must be a number above 0"),
        ([{"path": "a", "weight": "2"}], r"data\.sets\[0\]\.weight=2: must be a number above 0"),
        ([{"path": "a", "weight": 1_000_000}], r"weight=1000000: must be .* and below 1,000,000"),
        ([{"path": "a", "weight": True}], r"data\.sets\[0\]\.weight=true: must be"),
        ([None], r"data\.sets\[0\]=null: must be a path, or a mapping"),
        ([{"path": "a", "weight": float("nan")}], r"data\.sets\[0\]\.weight=nan: must be"),
        ([{"path": "a", "format": "x"}], r"data\.sets\[0\]\.format=x: there is no such format"),
        ([{"path": "a", "format": 3}], r"data\.sets\[0\]\.format=3: must be text"),
        ([{"path": "a", "columns": {"x": "y"}}], r"data\.sets\[0\]\.columns=\{x: y\}: x is no key"),
        (
            [{"path": "a", "columns": {"prompt": ["x"]}}],
            r"data\.sets\[0\]\.columns=\{prompt: \[x\]\}: on the right of a colon stands one key",
        ),
        ([{"path": "a", "columns": "x"}], r"data\.sets\[0\]\.columns=x: must be a mapping"),
    ],
)
def test_a_wrong_set_is_named(sets: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixtureSource(sets=sets)


def test_sets_that_do_not_fit_together(tmp_path: Path, pair: tuple[str, str]) -> None:
    a, b = pair
    twice = r"^data\.sets\[0\]\.path and data\.sets\[1\]\.path: hold a\.jsonl:1 twice; name each "
    with pytest.raises(DataError, match=twice):
        mixture(tmp_path, a, {"path": [a, b], "weight": 2})
    with pytest.raises(
        DataError,
        match=r"^data\.sets\[1\]\.path=.*b\.jsonl: of its 20 conversations, "
        r"data\.sets\[1\]\.weight=0\.01 leaves none in an epoch; set .* to 0\.05 or more",
    ):
        mixture(tmp_path, a, {"path": b, "weight": 0.01})
    assert mixture(tmp_path, a, {"path": b, "weight": 0.05}).train.shares[1].per_epoch == 1


def test_a_divided_directory_named_twice(tmp_path: Path) -> None:
    for name in ("train", "test"):
        write_jsonl(tmp_path / f"{name}.jsonl", chats(2))
    source = FilesSource(path=[str(tmp_path)] * 2, val_fraction=0.0)
    with pytest.raises(DataError, match=r"^data\.path: holds train\.jsonl:1 twice; name each file"):
        source.prepare()


# --- chitchat: converting one record


def record(*turns: list[str], prompt: str | None = None) -> dict[str, Any]:
    """A record in the package's form; each turn is a list of utterances."""
    fields = {} if prompt is None else {"prompt": prompt}
    return {"messages": [[{"text": text} for text in turn] for turn in turns], **fields}


def pairs(*turns: list[str], prompt: str | None = None) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in to_messages(record(*turns, prompt=prompt))]


def test_turns_alternate_and_utterances_are_joined() -> None:
    assert pairs(["Hello ", " how are you?"], ["fine", "", "  ", "you?"], ["ok"]) == [
        ("user", "Hello how are you?"),
        ("assistant", "fine you?"),
        ("user", "ok"),
    ]


def test_the_topic_is_the_system_message() -> None:
    assert pairs(["a"], ["b"], prompt=" What if? ") == [
        ("system", "What if?"),
        ("user", "a"),
        ("assistant", "b"),
    ]
    assert pairs(["a"], ["b"], prompt="") == pairs(["a"], ["b"])


def test_neighbours_of_an_empty_turn_are_one_message() -> None:
    # Speakers: A B(empty) A B. The two turns of A are one message.
    assert pairs(["a1"], [" "], ["a2"], ["b"]) == [("user", "a1 a2"), ("assistant", "b")]
    # A B(empty) A(empty) B: still A, then B.
    assert pairs(["a"], [""], [], ["b"]) == [("user", "a"), ("assistant", "b")]


def test_whoever_speaks_first_is_the_user() -> None:
    assert pairs([""], ["b"], ["a"]) == [("user", "b"), ("assistant", "a")]


def test_two_turns_of_one_speaker_are_no_conversation() -> None:
    conversations, counts = select([record(["a1"], [""], ["a2"])])
    assert conversations == []
    assert counts["dropped"]["fewer than two turns with text"] == 1  # type: ignore[index]


# --- chitchat: what is left out


@pytest.mark.parametrize(
    "text",
    [
        "see http://x.org",
        "HTTPS://X.ORG",
        "www.twitch.tv",
        "go to lds.org/topics now",
        "mail me: a.b+c@mail.example.com",
        "(me@x.io)",
    ],
)
def test_links_and_addresses_are_left_out(text: str) -> None:
    for conversation in (record(["hi"], [text]), record(["a"], ["b"], prompt=text)):
        conversations, counts = select([conversation])
        assert conversations == []
        assert counts["dropped"]["contains a URL or e-mail address"] == 1  # type: ignore[index]


@pytest.mark.parametrize(
    "text", ["Awwww. D'awww.", "wut!@@@@@!@!@", "$4.99/month", "and/or", "I like Twitch.tv", "@ 5"]
)
def test_what_only_looks_like_a_link_is_kept(text: str) -> None:
    assert len(select([record(["hi"], [text])])[0]) == 1


def test_duplicates_are_left_out_whatever_their_topic() -> None:
    conversations, counts = select(
        [
            record(["a"], ["b"], prompt="one"),
            record(["a"], ["b"], prompt="two"),
            record(["a"], ["b"], ["c"]),
            record(["a"]),
            record([" a"], ["b", ""]),
        ]
    )
    assert [len(c) for c in conversations] == [3, 3]
    assert counts == {
        "read": 5,
        "dropped": {
            "fewer than two turns with text": 1,
            "contains a URL or e-mail address": 0,
            "exact duplicate": 2,
        },
        "written": 2,
    }


# --- chitchat: the package itself


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("chitchat_dataset")
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def prepared(cache: Path) -> PreparedData:
    return ChitchatSource(cache_dir=str(cache)).prepare()


def folder(cache: Path) -> Path:
    return cache / f"chitchat-{metadata.version('chitchat-dataset')}"


def test_chitchat_counts_add_up(prepared: PreparedData) -> None:
    assert prepared.notes == {
        "read": 7168,
        "dropped": {
            "fewer than two turns with text": 3151,
            "contains a URL or e-mail address": 25,
            "exact duplicate": 4,
        },
        "written": 3988,
    }
    assert 7168 - 3151 == 4017 == 25 + 4 + 3988
    assert (len(prepared.train), len(prepared.val)) == (3789, 199)  # round(3988 * 0.05) == 199


def test_every_chitchat_record_is_a_conversation(cache: Path, prepared: PreparedData) -> None:
    lines = (folder(cache) / "chitchat.jsonl").read_bytes().splitlines()
    assert len(lines) == 3988
    for line in lines:
        messages = json.loads(line)["messages"]
        turns = messages[1:] if messages[0]["role"] == "system" else messages
        assert len(turns) >= 2
        assert [m["role"] for m in turns] == [
            ("user", "assistant")[i % 2] for i in range(len(turns))
        ]
        assert all(m["content"] and m["content"] == m["content"].strip() for m in messages)


def test_chitchat_can_be_encoded(prepared: PreparedData) -> None:
    encode = ConversationEncoder(Parser(), load_tokenizer("bytes"), 2048, Overlong.TRUNCATE)
    accounting = Accounting()
    for i in range(len(prepared.val)):
        accounting.add(encode(prepared.val.read(i), prepared.val.source_id(i)))
    assert accounting.read == accounting.kept + accounting.dropped_total == 199
    assert set(accounting.dropped) <= {"no answer within the capacity"}
    assert 0 < accounting.loss_tokens < accounting.real_tokens <= 2048 * accounting.kept


def test_what_is_left_in_the_cache(cache: Path, prepared: PreparedData) -> None:
    assert sorted(p.name for p in folder(cache).iterdir()) == [
        "chitchat.json",
        "chitchat.jsonl",
        "chitchat.jsonl.idx",
    ]
    mark = json.loads((folder(cache) / "chitchat.json").read_text())
    assert mark["bytes"] == (folder(cache) / "chitchat.jsonl").stat().st_size
    assert {key: mark[key] for key in ("read", "dropped", "written")} == prepared.notes


def test_a_second_run_writes_nothing(
    cache: Path, prepared: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder(cache).iterdir()}
    monkeypatch.setattr(chitchat, "_build", None)  # would fail if it were called
    again = ChitchatSource(cache_dir=str(cache)).prepare()
    assert again.notes == prepared.notes
    assert again.val.rows.tolist() == prepared.val.rows.tolist()
    after = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder(cache).iterdir()}
    assert after == before


SMALL = {
    "a": record(["hi"], ["yo"], prompt="topic"),
    "b": record(["hi"], ["hello"], ["bye"]),
    "c": record(["hi"]),
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChitchatSource:
    """A source whose package holds three records, two of them usable."""
    source = tmp_path / "package.json"
    source.write_text(json.dumps(SMALL))
    monkeypatch.setattr(chitchat, "_locate", lambda: (source, "1.2"))
    return ChitchatSource(cache_dir=str(tmp_path / "cache"))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _age(path: Path) -> None:
    path.write_text(path.read_text().replace('"recipe": ', '"recipe": -'))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("chitchat.jsonl", Path.unlink),
        ("chitchat.jsonl", _cut),
        ("chitchat.json", Path.unlink),
        ("chitchat.json", _cut),
        ("chitchat.json", _age),
    ],
)
def test_a_damaged_cache_is_written_again(small: ChitchatSource, name: str, damage: Any) -> None:
    small.prepare()
    files = Path(small.cache_dir) / "chitchat-1.2"
    whole = {p.name: p.read_bytes() for p in files.iterdir()}
    damage(files / name)
    prepared = small.prepare()
    assert {p.name: p.read_bytes() for p in files.iterdir()} == whole
    assert prepared.notes["written"] == 2
    assert len(prepared.train) + len(prepared.val) == 2


def test_an_interrupted_conversion_leaves_no_cache(
    small: ChitchatSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            small.prepare()
    assert list((Path(small.cache_dir) / "chitchat-1.2").iterdir()) == []
    assert small.prepare().notes["written"] == 2


def test_a_cache_that_cannot_be_written_names_the_key(
    small: ChitchatSource, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    source = dataclasses.replace(small, cache_dir=str(tmp_path / "file"))
    with pytest.raises(
        DataError, match=r"^data\.cache_dir=.*/file: cannot prepare .* set data\.ca"
    ):
        source.prepare()
    source = dataclasses.replace(small, cache_dir="~no-one/cache")
    with pytest.raises(DataError, match=r"^data\.cache_dir=~no-one.* ~no-one is nobody's home"):
        source.prepare()


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chitchat, "_PACKAGE", "stowage-no-such-package")
    with pytest.raises(DataError, match=r"stowage-no-such-package: pip install 'stowage\[demo\]'"):
        ChitchatSource().prepare()


def _prepare(source: ChitchatSource, results: Any) -> None:
    prepared = source.prepare()
    results.put((prepared.notes, contents(prepared.train), contents(prepared.val)))


def test_processes_that_prepare_at_once_all_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package.json"
    package.write_text(
        json.dumps({str(n): record([f"question {n}"], ["answer " * (n + 1)]) for n in range(500)})
    )
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()

    def select_together(records: Any) -> Any:
        barrier.wait(timeout=30)  # each has found no cache, so each writes one
        return select(records)

    monkeypatch.setattr(chitchat, "_locate", lambda: (package, "1.2"))
    monkeypatch.setattr(chitchat, "select", select_together)
    source = ChitchatSource(cache_dir=str(tmp_path / "cache"))
    workers = [context.Process(target=_prepare, args=(source, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    got = [results.get(timeout=30) for _ in workers]
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert got[0] == got[1] == got[2]
    assert (got[0][0]["written"], len(got[0][1]), len(got[0][2])) == (500, 475, 25)
    assert sorted(p.name for p in (tmp_path / "cache" / "chitchat-1.2").iterdir()) == [
        "chitchat.json",
        "chitchat.jsonl",
        "chitchat.jsonl.idx",
    ]
