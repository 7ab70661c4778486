"""Gzip and Zstandard: several members, and what can be had of damaged ones."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.data.files.stores import chats, ids, lines, opened, reason, rows

CUT, DAMAGED = "compressed data breaks off", "compressed data is damaged"
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def noise(n: int) -> list[dict[str, object]]:
    """Chats that do not compress well, so that there are many blocks."""
    rng = random.Random(0)
    return [{**c, "id": f"{rng.getrandbits(400):x}"} for c in chats(n)]


def split(path: Path) -> tuple[list[bytes], list[tuple[str, str]]]:
    """The records, and the rest: label and reason."""
    good, bad = [], []
    for source_id, line in rows(opened(path)):
        found = reason(line)
        if found is None:
            good.append(line)
        else:
            bad.append((source_id, found))
    return good, bad


@pytest.mark.parametrize("kind", PACK)
def test_several_members(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"c.jsonl.{kind}"
    parts = [lines(chats(3)), lines(chats(5)[3:])]
    path.write_bytes(b"".join(map(PACK[kind], parts)))
    assert split(path) == (lines(chats(5)).split(b"\n")[:-1], [])


def test_zstandard_with_a_window_of_more_than_the_usual_size(tmp_path: Path) -> None:
    # As zstd --long=28 writes it; the usual limit is 27.
    wide = zstandard.ZstdCompressionParameters.from_level(1, window_log=28)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    path = tmp_path / "c.jsonl.zst"
    path.write_bytes(stream.compress(lines(chats(3))) + stream.flush())
    assert split(path) == (lines(chats(3)).split(b"\n")[:-1], [])


def test_zeros_behind_a_gzip_member_are_padding(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(gzip.compress(lines(chats(2))) + b"\0" * 20_000)
    assert len(split(path)[0]) == 2 and split(path)[1] == []


def test_gzip_cut_anywhere_gives_what_stands_before(tmp_path: Path) -> None:
    whole, text = gzip.compress(lines(noise(400))), lines(noise(400)).split(b"\n")
    for i, cut in enumerate(random.Random(1).sample(range(20, len(whole)), 12)):
        (tmp_path / str(i)).mkdir()
        path = tmp_path / str(i) / "c.jsonl.gz"
        path.write_bytes(whole[:cut])
        available = zlib.decompressobj(wbits=31).decompress(whole[:cut]).count(b"\n")
        good, bad = split(path)
        assert good == text[:available]
        assert bad == [(f"c.jsonl.gz:{available + 1}", CUT)]


def test_gzip_with_a_wrong_byte_gives_what_stands_before(tmp_path: Path) -> None:
    whole, text = bytearray(gzip.compress(lines(noise(2000)))), lines(noise(2000)).split(b"\n")
    at = len(whole) // 2
    whole[at] ^= 0x55
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(whole)
    good, bad = split(path)
    assert [what for _, what in bad] == [DAMAGED]
    before = zlib.decompressobj(wbits=31).decompress(whole[: at - 1]).count(b"\n")
    assert good[:before] == text[:before]


def test_a_wrong_checksum_costs_no_record(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(lines(chats(100))))
    whole[-8] ^= 1
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(whole)
    good, bad = split(path)
    assert len(good) == 100
    assert bad == [("c.jsonl.gz:101", DAMAGED)]


def test_zstandard_cut_or_wrong_in_the_middle(tmp_path: Path) -> None:
    # Of wrong bytes in the middle only the checksum at the end may tell.
    text = lines(noise(8_000)).split(b"\n")
    whole = PACK["zst"](lines(noise(8_000)))
    wrong = bytearray(whole)
    wrong[len(whole) // 2 : len(whole) // 2 + 40] = b"\xff" * 40
    for name, content, expected in (
        ("a", whole[: len(whole) // 2], CUT),
        ("b", bytes(wrong), DAMAGED),
    ):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "c.jsonl.zst"
        path.write_bytes(content)
        good, bad = split(path)
        assert [what for _, what in bad] == [expected]
        # A block holds 128 KiB; the one with the damage may be lost whole.
        before = int(len(text) * 0.4)
        assert len(good) > before
        assert good[:before] == text[:before]


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("content", [b"no such thing", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"])
def test_not_compressed_at_all(kind: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"c.jsonl.{kind}"
    path.write_bytes(content)
    good, bad = split(path)
    assert good == []
    assert [source_id for source_id, _ in bad] == [f"c.jsonl.{kind}:1"]
    assert {what for _, what in bad} <= {CUT, DAMAGED}


@pytest.mark.parametrize("kind", PACK)
def test_a_json_list_that_is_cut(kind: str, tmp_path: Path) -> None:
    whole = PACK[kind](json.dumps(noise(8_000)).encode())
    path = tmp_path / f"c.json.{kind}"
    path.write_bytes(whole[: len(whole) // 2])
    good, bad = split(path)
    assert [what for _, what in bad] == [CUT]
    assert [json.loads(line) for line in good] == noise(8_000)[: len(good)]
    assert len(good) > 8_000 * 0.4
    assert len(set(ids(opened(path)))) == len(good) + 1
