import json
import multiprocessing
import os
import pickle
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from data import notes
from data.errors import DataError
from data.jsonl import JsonlFile, Records, open_jsonl, split_by_conversation, write_jsonl

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: bytes, name: str = "chat.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def rows(file: JsonlFile) -> list[tuple[str, bytes]]:
    return [(file.source_id(row), file.read(row)) for row in range(len(file))]


def index(path: Path) -> list[int]:
    return np.fromfile(path.with_name(path.name + ".idx"), dtype="<u8").tolist()


def test_rows_offsets_and_fingerprints(write: Write) -> None:
    file = open_jsonl(write(b'{"a":1}\n{"b":22}\n{"a":1}\n'))
    assert file.offsets.tolist() == [0, 8, 17, 25]
    assert file.labels.tolist() == [1, 2, 3]
    expected = [
        int.from_bytes(blake2b(row, digest_size=8).digest(), "little")
        for row in (b'{"a":1}', b'{"b":22}', b'{"a":1}')
    ]
    assert file.fingerprints.tolist() == expected
    dtypes = (file.offsets.dtype, file.labels.dtype, file.fingerprints.dtype)
    assert dtypes == (np.int64, np.int64, np.uint64)


@pytest.mark.parametrize(
    ("content", "lines", "offsets"),
    [
        (b"{1}\n{2}", [1, 2], [0, 4, 7]),
        (b"{1}\r\n{2}\r\n", [1, 2], [0, 5, 10]),
        (b"{1}\n\n \t\n{2}\n", [1, 4], [0, 8, 12]),
        (b"\n\n{1}\n{2}\n", [3, 4], [0, 6, 10]),
        (b"{1}\n{2}\n\n\r\n", [1, 2], [0, 4, 11]),
        (b"\xef\xbb\xbf{1}\n{2}\n", [1, 2], [0, 7, 11]),
        (b"\xef\xbb\xbf\n{1}\n{2}\n", [2, 3], [0, 8, 12]),
    ],
    ids=[
        "no final newline",
        "CRLF",
        "blank between",
        "blank first",
        "blank last",
        "BOM",
        "BOM \\n",
    ],
)
def test_line_numbers(write: Write, content: bytes, lines: list[int], offsets: list[int]) -> None:
    file = open_jsonl(write(content))
    assert rows(file) == [(f"chat.jsonl:{lines[0]}", b"{1}"), (f"chat.jsonl:{lines[1]}", b"{2}")]
    assert file.offsets.tolist() == offsets
    assert index(file.path) == offsets


def test_a_byte_order_mark_does_not_change_the_fingerprint(write: Write) -> None:
    marked = open_jsonl(write(b"\xef\xbb\xbf{1}\n{1}\r\n"))
    assert marked.fingerprints[0] == marked.fingerprints[1]


def test_a_broken_line_is_a_row(write: Write) -> None:
    file = open_jsonl(write(b"{1}\nnot json\n\xff\xfe\n{2}\n"))
    assert [line for _, line in rows(file)] == [b"{1}", b"not json", b"\xff\xfe", b"{2}"]


@pytest.mark.parametrize(
    "content",
    [
        b'{"a":1}\n{"b":2}\n',
        b'{"a":1}\r\n{"b":2}',
        b'\n\n{"a":1}\n\n  \n{"b":2}\n\n\n',
    ],
    ids=["clean", "CRLF", "blank lines"],
)
def test_the_index_is_energons(write: Write, tmp_path: Path, content: bytes) -> None:
    prepare = pytest.importorskip("megatron.energon.flavors.jsonl.jsonl_prepare")
    ours, theirs = write(content), write(content, "theirs.jsonl")
    open_jsonl(ours)
    assert prepare.JsonlPreparator.prepare_dataset(theirs) == 2
    assert (tmp_path / "chat.jsonl.idx").read_bytes() == (
        tmp_path / "theirs.jsonl.idx"
    ).read_bytes()


def test_the_index_is_renewed_only_when_it_is_wrong(write: Write) -> None:
    path = write(b"{1}\n{22}\n")
    idx = path.with_name("chat.jsonl.idx")
    open_jsonl(path)
    first = idx.stat()
    open_jsonl(path)
    assert (idx.stat().st_ino, idx.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    write(b"{11}\n{2}\n")  # as many bytes, another boundary
    open_jsonl(path)
    assert index(path) == [0, 5, 9]
    idx.write_bytes(idx.read_bytes()[:-3])
    open_jsonl(path)
    assert index(path) == [0, 5, 9]


def test_only_jsonl_names_get_an_index(write: Write, tmp_path: Path) -> None:
    open_jsonl(write(b"{1}\n", "chat.json"))
    open_jsonl(write(b"{1}\n", "a.b.jsonl"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.b.jsonl", "a.b.jsonl.idx", "chat.json"]


def test_an_index_that_cannot_be_written_is_no_error(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(b"{1}\n{2}\n")
    monkeypatch.setattr("os.replace", refuse)
    assert len(open_jsonl(path)) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["chat.jsonl"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_no_error(write: Write, tmp_path: Path) -> None:
    path = write(b"{1}\n{2}\n")
    tmp_path.chmod(0o500)
    try:
        assert len(open_jsonl(path)) == 2
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n\n\t", b"\xef\xbb\xbf\n"])
def test_a_file_without_rows_is_named(write: Write, content: bytes) -> None:
    path = write(content)
    with pytest.raises(DataError) as error:
        open_jsonl(path, key="data.val_path")
    assert f"data.val_path={path} holds no conversations" in str(error.value)
    assert "one JSON object per line" in str(error.value)
    assert not path.with_name("chat.jsonl.idx").exists()


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.path=.*/nope\.jsonl does not exist; set data\.pa"):
        open_jsonl(tmp_path / "nope.jsonl")
    with pytest.raises(DataError, match=r"data\.path=.* is a directory; set data\.path to one"):
        open_jsonl(tmp_path)
    with pytest.raises(DataError, match=r"data\.path=~no-one/a cannot be read \(~no-one "):
        open_jsonl("~no-one/a")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(DataError, match=r"pipe\.jsonl is not a regular file; set data\.path"):
        open_jsonl(tmp_path / "pipe.jsonl")


def test_relative_and_home_paths_become_absolute(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(b"{1}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    relative = open_jsonl("chat.jsonl")
    monkeypatch.chdir("/")
    assert relative.path == open_jsonl("~/chat.jsonl").path == path
    assert relative.read(0) == b"{1}"


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_is_not_there(write: Write, row: int) -> None:
    with pytest.raises(IndexError, match="2 rows"):
        open_jsonl(write(b"{1}\n{2}\n")).read(row)


@pytest.mark.parametrize("read_first", [False, True])
def test_a_file_that_changes_in_use_is_noticed(write: Write, read_first: bool) -> None:
    file = open_jsonl(write(b"{1}\n{2}\n"))
    if read_first:
        file.read(0)
    write(b"{1}\n")
    with pytest.raises(DataError, match=r"^data\.path=.*chat\.jsonl changed while it was in u"):
        file.read(1)


def test_a_file_that_vanishes_is_named(write: Write) -> None:
    path = write(b"{1}\n")
    file = open_jsonl(path)
    path.unlink()
    with pytest.raises(
        DataError, match=r"^data\.path=.*chat\.jsonl cannot be read any more \(No su"
    ):
        file.read(0)


def _read_all(file: JsonlFile) -> tuple[list[bytes], bool]:
    lines = [file.read(row) for _ in range(20) for row in range(len(file))]
    assert file._opened is not None
    return lines, file._opened[0] == os.getpid()


def test_reading_survives_forks(write: Write) -> None:
    lines = [b'{"row": %d, "x": "%s"}' % (n, b"x" * n) for n in range(100)]
    file = open_jsonl(write(b"\n".join(lines)))
    file.read(5)  # the parent has the file open before it forks
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pending = pool.map_async(_read_all, [file] * 2, chunksize=1)
        mine, _ = _read_all(file)
        results = pending.get(timeout=20)
    assert mine == lines * 20
    assert results == [(lines * 20, True)] * 2


def test_a_forked_child_opens_the_file_for_itself(write: Write) -> None:
    file = open_jsonl(write(b"{1}\n{2}\n"))
    file.read(0)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    # Inherited by the fork, not pickled.
    child = multiprocessing.get_context("fork").Process(
        target=lambda: sender.send(_read_all(file)[1])
    )
    child.start()
    assert receiver.poll(20) and receiver.recv() is True
    child.join()
    assert file.read(1) == b"{2}"


def test_a_pickled_file_opens_itself_again(write: Write) -> None:
    file = open_jsonl(write(b"{1}\n{2}\n"))
    file.read(0)
    copy = pickle.loads(pickle.dumps(file))
    assert copy._opened is None
    assert rows(copy) == rows(file)


def test_a_dropped_file_is_closed(write: Write) -> None:
    file = open_jsonl(write(b"{1}\n"))
    file.read(0)
    assert file._opened is not None
    descriptor = file._opened[1]
    del file
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_records_map_positions_to_rows(write: Write) -> None:
    file = open_jsonl(write(b"{1}\n\n{2}\n{3}\n"))
    records = Records.of([file]).take(np.array([2, 1]))
    assert len(records) == 2
    assert [records.read(i) for i in range(2)] == [b"{3}", b"{2}"]
    assert [records.source_id(i) for i in range(2)] == ["chat.jsonl:4", "chat.jsonl:3"]
    assert records.fingerprints.tolist() == file.fingerprints[[2, 1]].tolist()


def test_records_of_several_files(write: Write) -> None:
    files = [open_jsonl(write(b"{1}\n{2}\n")), open_jsonl(write(b"{3}\n{4}\n{5}\n", "b.jsonl"))]
    note = notes.of_format("messages", {})
    records = Records.of(files, [np.array([1]), np.array([0, 2])], [b"", note])
    assert contents(records) == [b"{2}", note + b"{3}", note + b"{5}"]
    ids = [records.source_id(i) for i in range(3)]
    assert ids == ["chat.jsonl:2", "b.jsonl:1", "b.jsonl:3"]
    prints = [files[0].fingerprints[1], files[1].fingerprints[0], files[1].fingerprints[2]]
    assert records.fingerprints.tolist() == [int(p) for p in prints]
    assert contents(records.take(np.array([2, 0]))) == [note + b"{5}", b"{2}"]
    copy = pickle.loads(pickle.dumps(records))
    assert contents(copy) == contents(records)


def test_a_line_that_starts_with_nul_is_not_taken_for_a_note(write: Write) -> None:
    forged = notes.damaged("I say so")
    file = open_jsonl(write(forged + b"\n{1}\n"))
    note, record = notes.split(file.read(0))
    assert (note, record) == (notes.Note(), forged)
    assert file.read(1) == b"{1}"


def contents(records: Records) -> list[bytes]:
    return [records.read(i) for i in range(len(records))]


def numbered(n: int) -> list[bytes]:
    return [b'{"n": %d}' % k for k in range(n)]


@pytest.mark.parametrize(
    ("n", "fraction", "expected"),
    [(100, 0.05, 5), (100, 0.25, 25), (100, 0.001, 1), (2, 0.05, 1), (2, 0.9, 1), (10, 0.99, 9)],
)
def test_split_sizes(write: Write, n: int, fraction: float, expected: int) -> None:
    file = open_jsonl(write(b"\n".join(numbered(n))))
    train, val = split_by_conversation(file, fraction)
    assert (len(train), len(val)) == (n - expected, expected)
    assert sorted(train.rows.tolist() + val.rows.tolist()) == list(range(n))
    assert np.all(np.diff(train.rows) > 0) and np.all(np.diff(val.rows) > 0)
    assert file.fingerprints[val.rows].max() < file.fingerprints[train.rows].min()
    assert train.rows.dtype == val.rows.dtype == np.int64


def test_split_ignores_the_order_of_the_file(write: Write) -> None:
    lines = numbered(60) + numbered(20)
    _, val = split_by_conversation(open_jsonl(write(b"\n".join(lines))), 0.2)
    shuffled = [lines[k] for k in np.random.default_rng(0).permutation(80)]
    _, again = split_by_conversation(open_jsonl(write(b"\n".join(shuffled), "b.jsonl")), 0.2)
    assert sorted(contents(val)) == sorted(contents(again))
    assert contents(again) == [line for line in shuffled if line in set(contents(val))]


@pytest.mark.parametrize("copies", [2, 7, 30])
def test_equal_conversations_stay_on_one_side(write: Write, copies: int) -> None:
    file = open_jsonl(write(b"\n".join(numbered(40) + [b'{"n": 3}'] * copies)))
    for fraction in (0.01, 0.1, 0.5, 0.9):
        train, val = split_by_conversation(file, fraction)
        assert len(val) >= 1 and len(train) >= 1
        assert len(train) + len(val) == 40 + copies
        assert not set(contents(train)) & set(contents(val))


def test_a_split_takes_the_nearest_cut_between_equal_rows(write: Write) -> None:
    pair = sorted(numbered(2), key=lambda row: blake2b(row, digest_size=8).digest()[::-1])
    low, high = pair  # by fingerprint, which is read little-endian
    file = open_jsonl(write(b"\n".join([high] * 3 + [low] * 7)))
    assert contents(split_by_conversation(file, 0.1)[1]) == [low] * 7
    file = open_jsonl(write(b"\n".join([high] * 7 + [low] * 3)))
    assert contents(split_by_conversation(file, 0.9)[1]) == [low] * 3


def test_no_validation_is_asked_for(write: Write) -> None:
    train, val = split_by_conversation(open_jsonl(write(b"{1}\n{2}\n{1}\n")), 0)
    assert train.rows.tolist() == [0, 1, 2]
    assert len(val) == 0 and val.rows.dtype == np.int64


def test_limit_comes_before_the_split(write: Write) -> None:
    file = open_jsonl(write(b"\n".join(numbered(50))))
    train, val = split_by_conversation(file, 0.2, limit=10)
    assert sorted(train.rows.tolist() + val.rows.tolist()) == list(range(10))
    assert len(val) == 2


@pytest.mark.parametrize("content", [b"{1}\n", b"{1}\n{1}\n{1}\n"])
def test_too_little_to_split_says_what_to_do(write: Write, content: bytes) -> None:
    with pytest.raises(DataError) as error:
        split_by_conversation(open_jsonl(write(content)), 0.05)
    for part in ("data.val_fraction=0.05", "chat.jsonl", "data.val_path", "data.val_fraction=0"):
        assert part in str(error.value)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_a_fraction_out_of_range(write: Write, fraction: float) -> None:
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        split_by_conversation(open_jsonl(write(b"{1}\n{2}\n")), fraction)


def test_written_records_come_back(tmp_path: Path) -> None:
    records = [{"text": "line\nbreak"}, {"text": "\ud800 é"}, {"n": 1}]
    write_jsonl(tmp_path / "out.jsonl", records)
    file = open_jsonl(tmp_path / "out.jsonl")
    assert [json.loads(line) for _, line in rows(file)] == records


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "out.jsonl", [{"old": 1}])

    def records() -> object:
        yield {"new": 1}
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        write_jsonl(tmp_path / "out.jsonl", records())  # type: ignore[arg-type]
    assert (tmp_path / "out.jsonl").read_bytes() == b'{"old": 1}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["out.jsonl"]


def test_equal_conversations_in_several_files_stay_on_one_side(write: Write) -> None:
    first, second = numbered(40), [*numbered(20), b'{"n": 100}']
    files = [open_jsonl(write(b"\n".join(first))), open_jsonl(write(b"\n".join(second), "b.jsonl"))]
    records = Records.of(files)
    train, val = split_by_conversation(records, 0.3)
    assert len(train) + len(val) == 61
    assert not set(contents(train)) & set(contents(val))
    # As if all had been in one file.
    whole = open_jsonl(write(b"\n".join(first + second), "c.jsonl"))
    assert contents(split_by_conversation(whole, 0.3)[1]) == contents(val)
