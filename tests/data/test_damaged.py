"""Ten thousand damaged records among good ones: none of either is lost, and no reason is wrong."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from data.chat import ConversationEncoder, Dropped, Overlong
from data.errors import DataError
from data.formats import Parser
from data.jsonl import Records
from data.sources.files import FilesSource
from data.tokenizers import load_tokenizer
from data.windows import WindowOrder
from tests.data.files.stores import chat, write_parquet, write_tar
from tests.data.streams import ItemStream

BAD = 10_000
GOOD = 2_000
CAPACITY = 64


def wrong(content: Any) -> bytes:
    return json.dumps({"messages": content}).encode()


def answered(**message: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "q", **message}, {"role": "assistant", "content": "a"}]


def surrogate(r: random.Random) -> str:
    return chr(r.randrange(0xD800, 0xE000))


# Each kind of damage: a line of JSONL, made with random numbers, and the reason it is dropped for.
KINDS: list[tuple[str, Callable[[random.Random], bytes]]] = [
    ("invalid JSON", lambda r: wrong(answered())[: r.randrange(1, 60)]),
    ("invalid JSON", lambda r: b'{"messages": [' + b"x" * r.randrange(1, 9)),
    ("invalid JSON", lambda r: wrong(answered()).replace(b"q", b"\0" * r.randrange(1, 5))),
    ("invalid JSON", lambda r: b"\0" * r.randrange(1, 40)),
    ("invalid JSON", lambda r: wrong(answered()) * 2),
    ("text is not valid Unicode", lambda r: b"\xff" + r.randbytes(30).replace(b"\n", b"\t")),
    ("text is not valid Unicode", lambda r: wrong(answered()).replace(b"q", b"\xc3\x28")),
    ("text is not valid Unicode", lambda r: wrong(answered(content=surrogate(r)))),
    ("text is not valid Unicode", lambda r: wrong(answered(name="\udc00"))),
    ("text is not valid Unicode", lambda r: wrong(answered(tool_calls=[{"f": [{"\ud800": 1}]}]))),
    ("JSON nested too deeply", lambda r: b"[" * r.randrange(20_000, 30_000)),
    ("JSON nested too deeply", lambda r: wrong(0).replace(b"0", b'{"a":' * 20_000)),
    ("not a JSON object", lambda r: json.dumps(r.choice([[], 3, "x", None, True, [{}]])).encode()),
    ("no format has these keys", lambda r: json.dumps({f"k{r.random()}": 1}).encode()),
    ("messages is null", lambda r: wrong(None)),
    ("messages is not a list", lambda r: wrong(r.choice([3, "hi", {}, True, 1e300]))),
    ("messages is empty", lambda r: wrong([])),
    ("a message is not an object", lambda r: wrong([*answered(), r.choice([None, 3, "x", []])])),
    ("a message has no role", lambda r: wrong([*answered(), {"content": "x" * r.randrange(5)}])),
    ("unknown role", lambda r: wrong(answered(role=r.choice([None, "bot", 7, ["user"], ""])))),
    ("content is not a string", lambda r: wrong(answered(content=r.choice([None, 3, {}, 1.5])))),
    ("content has a part that is not text", lambda r: wrong(answered(content=[{"type": "image"}]))),
    ("tool_calls is not a list of objects", lambda r: wrong(answered(tool_calls=[r.random()]))),
    ("no assistant turn", lambda r: wrong(answered()[:1] * r.randrange(1, 4))),
    ("over the capacity", lambda r: wrong(answered(content="x" * r.choice([100, 100_000])))),
]  # fmt: skip


def made(seed: int, bad: int, good: int) -> list[tuple[bytes, str | None]]:
    """Lines in random order, each with the reason it has to be dropped for; None: it is good."""
    r = random.Random(seed)
    lines: list[tuple[bytes, str | None]] = []
    for i in range(bad):
        why, make = KINDS[i % len(KINDS)]
        # No whitespace around, or the line would be read as another.
        line = make(r).strip()
        lines.append((line, why))
    lines += [(json.dumps(chat(f"q{i}")).encode(), None) for i in range(good)]
    r.shuffle(lines)
    return lines


def prepared(path: Path | list[Path], **settings: Any) -> Records:
    paths = [str(p) for p in path] if isinstance(path, list) else str(path)
    cache = str((path[0] if isinstance(path, list) else path).parent / "cache")
    source = FilesSource(path=paths, cache_dir=cache, val_fraction=0.0, **settings)
    return source.prepare().train


ENCODE = ConversationEncoder(Parser(), load_tokenizer("bytes"), CAPACITY, Overlong.DROP)


def outcomes(records: Records) -> dict[str, str | None]:
    """For each row the reason it is dropped for, None where it is used."""
    found: dict[str, str | None] = {}
    for i in range(len(records)):
        outcome = ENCODE(records.read(i), records.source_id(i))
        found[outcome.source_id] = outcome.reason if isinstance(outcome, Dropped) else None
    assert len(found) == len(records), "two rows have the same id"
    return found


def streamed(records: Records, workers: int) -> tuple[Counter[str], Counter[str], int]:
    """How often each row arrives, the counts by reason, and how many rows were read."""
    order = WindowOrder(rows=len(records), window_size=256, epochs=1, shuffle=True, seed=3)
    with ItemStream(records, ENCODE, order, num_workers=workers) as stream:
        arrived = Counter(sample.source_id for sample in stream)
        accounting = stream.accounting
    assert accounting.read == accounting.kept + accounting.dropped_total == len(records)
    return arrived, Counter(accounting.dropped), accounting.bad


def check(records: Records, expected: dict[str, str | None], workers: int) -> None:
    """Each row has its outcome, and each good one arrives exactly once."""
    assert outcomes(records) == expected
    arrived, dropped, bad = streamed(records, workers)
    assert arrived == Counter(i for i, why in expected.items() if why is None)
    assert dropped == Counter(why for why in expected.values() if why is not None)
    assert bad == sum(why not in (None, "over the capacity") for why in expected.values())


def numbered(name: str, lines: list[tuple[bytes, str | None]]) -> dict[str, str | None]:
    return {f"{name}:{n}": why for n, (_, why) in enumerate(lines, start=1)}


@pytest.mark.parametrize("workers", [0, 2])
def test_json_lines(tmp_path: Path, workers: int) -> None:
    lines = made(1, BAD, GOOD)
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"\n".join(line for line, _ in lines))
    check(prepared(path), numbered("c.jsonl", lines), workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_kind_of_file_at_once(tmp_path: Path, workers: int) -> None:
    expected: dict[str, str | None] = {}
    paths = [
        tmp_path / name for name in ("c.jsonl.gz", "c.jsonl.zst", "c.json", "c.parquet", "s.tar")
    ]
    gz, zst, document, table, shard = paths

    # Gzip and Zstandard: broken lines, and a file that breaks off.
    for path, pack in ((gz, gzip.compress), (zst, zstandard.ZstdCompressor().compress)):
        lines = made(2, 600, 300)
        # The part before is complete in itself; of the part behind there is only the start.
        text = b"".join(line + b"\n" for line, _ in lines)
        path.write_bytes(pack(text) + pack(b"x" * 1000)[:-6])
        expected |= numbered(path.name, lines)
        expected[f"{path.name}:{len(lines) + 1}"] = "compressed data breaks off"

    # One JSON document: what is JSON at all can stand in a list.
    lines = [(line, why) for line, why in made(3, 600, 300) if _is_element(line)]
    document.write_bytes(b"[" + b",\n".join(line for line, _ in lines) + b", {broken")
    expected |= numbered("c.json", lines)
    expected[f"c.json:{len(lines) + 1}"] = "JSON is broken from here on"

    # Parquet: a column has one type, so texts stand for most of what can be wrong.
    texts = ["a", None, "", "\N{PILE OF POO}", "x" * 1000]
    whys = [None, "completion is neither text nor messages", None, None, "over the capacity"]
    records = [{"prompt": f"q{i}", "completion": texts[i % 5]} for i in range(300)]
    write_parquet(table, records, group_size=50)
    expected |= {f"c.parquet:{i + 1}": whys[i % 5] for i in range(300)}

    # A shard that breaks off in its last sample.
    lines = made(4, 300, 100)
    write_tar(shard, [(f"{i:05d}.json", line) for i, (line, _) in enumerate(lines)])
    expected |= {f"s.tar:{i:05d}": why for i, (_, why) in enumerate(lines)}
    with shard.open("r+b") as file:
        last = f"{len(lines) - 1:05d}"
        file.truncate(file.read().rindex(f"{last}.json".encode()) + 512 + 1)
    del expected[f"s.tar:{last}"]
    expected[f"s.tar:after {len(lines) - 2:05d}"] = "the archive is damaged from here on"

    check(prepared(paths), expected, workers)


def _is_element(line: bytes) -> bool:
    """Whether it can stand in a list without damage to what comes behind."""
    try:
        json.loads(line.decode("utf-8", "surrogateescape"), strict=False)
    except (ValueError, RecursionError):
        return False
    return True


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_of_mostly_bad_data_stops_and_says_why(tmp_path: Path, workers: int) -> None:
    lines = made(5, 900, 100)
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"\n".join(line for line, _ in lines))
    records = prepared(path)
    order = WindowOrder(rows=1000, window_size=50, epochs=None, shuffle=True, seed=3)
    messages = []
    for _ in range(2):
        stream = ItemStream(records, ENCODE, order, max_bad_fraction=0.5, num_workers=workers)
        with stream, pytest.raises(DataError) as error:
            for _ in stream:
                pass
        messages.append(str(error.value))
        # Certain as soon as more than half of the data set has been seen to be bad, no sooner.
        assert 500 < stream.accounting.bad <= 550
    assert messages[0] == messages[1]
    assert (
        "of 1,000 conversations cannot be used, more than data.max_bad_fraction=0.5 allows"
        in (messages[0])
    )
    for part in ("invalid JSON: c.jsonl:", "unknown role: c.jsonl:", "data.format"):
        assert part in messages[0]


def test_the_stop_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"\n".join(line for line, _ in made(6, 150, 50)))
    order = WindowOrder(rows=200, window_size=16, epochs=None, shuffle=True, seed=3)
    messages = set()
    for workers in (0, 1, 2):
        with (
            ItemStream(
                prepared(path), ENCODE, order, max_bad_fraction=0.5, num_workers=workers
            ) as stream,
            pytest.raises(DataError) as error,
        ):
            list(stream)
        messages.add(str(error.value))
    assert len(messages) == 1


def test_what_is_dropped_by_choice_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    long = [wrong(answered(content="x" * 1000)) for _ in range(90)]
    path.write_bytes(b"\n".join([*long, *(json.dumps(chat(f"q{i}")).encode() for i in range(10))]))
    records = prepared(path)
    order = WindowOrder(rows=100, window_size=10, epochs=1, shuffle=False, seed=3)
    with ItemStream(records, ENCODE, order, max_bad_fraction=0.0) as stream:
        assert len(list(stream)) == 10


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.jsonl", b"", r"c\.jsonl holds no conversations, it is empty or blank; set data\.path"),
        ("c.jsonl", b"\n \n\t\r\n", r"c\.jsonl holds no conversations"),
        ("c.json", b" \n", r"c\.json holds no conversations"),
        ("c.jsonl.gz", gzip.compress(b"\n\n", mtime=0), r"c\.jsonl\.gz holds no conversations"),
        ("c.parquet", b"no", r"c\.parquet cannot be used: not a Parquet file, .* \(c\.parquet:1\)"),
        ("s.tar", b"no tar at all", r"s\.tar cannot be used: not a tar file \(s\.tar:1\)"),
    ],
)
def test_a_file_of_no_use_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^data\.path=.*/{message}"):
        prepared(path)


def test_an_empty_file_among_others_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n")
    (tmp_path / "b.jsonl").write_bytes(json.dumps(chat("q")).encode())
    assert outcomes(prepared(tmp_path)) == {"b.jsonl:1": None}
