"""The stream that Energon feeds: nothing lost, nothing moved by workers, no process left."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from data.chat import ConversationEncoder, Overlong
from data.errors import DataError
from data.formats import Parser
from data.jsonl import Records, open_jsonl, split_by_conversation
from data.packers import load_packer
from data.packers.base import Packer
from data.packing.batch import Pack
from data.packing.microbatches import Layout
from data.packing.settings import PackingMode
from data.tokenizers import load_tokenizer
from data.windows import Share, WindowOrder
from tests.data.streams import ItemStream

CAPACITY = 64


def records_of(path: Path, answers: Sequence[int]) -> Records:
    lines = []
    for i, length in enumerate(answers):
        if length < 0:
            lines.append("{broken")
            continue
        turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a" * length}]
        lines.append(json.dumps({"messages": turns, "i": i}))
    path.write_text("\n".join(lines), encoding="utf-8")
    return split_by_conversation(open_jsonl(path), 0)[0]


def layout(packer: Packer | None = None) -> Layout:
    return Layout(
        mode=PackingMode.LOADER,
        packer=packer or load_packer("mffd"),
        capacity=CAPACITY,
        pad_multiple=4,
        pad_id=256,
        micro_batch_size=1,
    )


def read(
    records: Records,
    *,
    workers: int = 0,
    pack: bool = True,
    size: int = 8,
    epochs: int | None = 1,
    overlong: Overlong = Overlong.DROP,
    world: tuple[int, int] = (0, 1),
    packer: Packer | None = None,
    shares: tuple[Share, ...] = (),
) -> tuple[list[Any], ItemStream]:
    encode = ConversationEncoder(Parser(), load_tokenizer("bytes"), CAPACITY, overlong)
    order = WindowOrder(
        rows=len(records), window_size=size, epochs=epochs, shuffle=True, seed=5, shares=shares
    )
    with ItemStream(
        records,
        encode,
        order,
        pack_with=layout(packer) if pack else None,
        num_workers=workers,
        rank=world[0],
        world_size=world[1],
    ) as stream:
        return list(stream), stream


def ids_of(items: list[Any]) -> list[str]:
    return [
        i
        for item in items
        for i in (item.row.source_ids if isinstance(item, Pack) else [item.source_id])
    ]


MIXED = [5, 30, -1, 12, 100, 7, 50, 3, 3, 41, -1, 22, 9, 200, 18, 1, 2, 60, 33]


@pytest.mark.parametrize("pack", [True, False])
def test_every_conversation_is_used_once_or_counted(tmp_path: Path, pack: bool) -> None:
    items, stream = read(records_of(tmp_path / "c.jsonl", MIXED), pack=pack, epochs=2)
    used = ids_of(items)
    good = [f"c.jsonl:{i + 1}" for i, n in enumerate(MIXED) if 0 <= n <= CAPACITY - 5]
    assert sorted(used) == sorted(2 * good)
    counts = stream.accounting.to_json()
    assert counts["read"] == 2 * len(MIXED) == counts["kept"] + counts["dropped_total"]
    assert counts["dropped"] == {"invalid JSON": 4, "over the capacity": 6}


def test_workers_and_ranks_do_not_move_rows(tmp_path: Path) -> None:
    records = records_of(tmp_path / "c.jsonl", MIXED * 4)
    one = [item.row.source_ids for item in read(records)[0]]
    for workers in (1, 2, 3):
        assert [i.row.source_ids for i in read(records, workers=workers)[0]] == one
    # Two ranks share the windows: together they hold the same rows.
    ranks = [[i.row.source_ids for i in read(records, world=(r, 2))[0]] for r in (0, 1)]
    assert sorted(ranks[0] + ranks[1]) == sorted(one)
    assert ranks[0] and ranks[1]


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_weights_are_how_often_conversations_come(tmp_path: Path, workers: int, pack: bool) -> None:
    records = records_of(tmp_path / "c.jsonl", [5] * 10 + [-1] * 2 + [7] * 8)
    shares = (Share(rows=12, per_epoch=24), Share(rows=8, per_epoch=4))
    items, stream = read(records, workers=workers, pack=pack, epochs=2, shares=shares)
    counts = Counter(ids_of(items))
    assert [counts[f"c.jsonl:{n}"] for n in range(1, 21)] == [4] * 10 + [0] * 2 + [1] * 8
    accounting = stream.accounting
    assert accounting.read == 2 * (24 + 4) == accounting.kept + accounting.dropped_total
    assert accounting.dropped == {"invalid JSON": 8}


def test_the_window_is_what_a_row_is_packed_from(tmp_path: Path) -> None:
    records = records_of(tmp_path / "c.jsonl", [10] * 40)
    small, large = (read(records, size=size)[0] for size in (3, 40))
    # 15 tokens, 16 padded: four fit a row of 64.
    assert [len(i.row.source_ids) for i in small] == [3] * 13 + [1]
    assert [len(i.row.source_ids) for i in large] == [4] * 10


def test_what_a_pack_carries(tmp_path: Path) -> None:
    items, stream = read(records_of(tmp_path / "c.jsonl", [20, 20, 5]))
    assert all(p.micro_batch_indices == ((0, 1),) for p in items)
    assert all(p.micro_batch_lengths == (CAPACITY,) == (p.row.tokens.shape[1],) for p in items)
    assert all(p.sample_mask == (1.0,) for p in items)
    assert (stream.rows, stream.fewest_rows) == (len(items), 2) == (2, 2)


def test_a_packer_that_loses_a_sample_is_noticed(tmp_path: Path) -> None:
    class Forgetful(Packer):
        def _pack(self, items: Any, capacity: int) -> list[list[int]]:
            return [[i] for i in range(len(items.lengths) - 1)]

    with pytest.raises(AssertionError, match="left a sample out"):
        read(records_of(tmp_path / "c.jsonl", [5, 6, 7]), packer=Forgetful())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pack", [True, False])
def test_nothing_usable_stops_an_endless_stream(tmp_path: Path, workers: int, pack: bool) -> None:
    records = records_of(tmp_path / "c.jsonl", [100, -1, 300])
    with pytest.raises(DataError, match="none of the 3 conversations can be used") as error:
        read(records, workers=workers, pack=pack, epochs=None, size=2)
    assert "over the capacity: c.jsonl:" in str(error.value)
    assert "invalid JSON: c.jsonl:2" in str(error.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_refused_conversation_is_named_without_a_stack_trace(
    tmp_path: Path, workers: int
) -> None:
    records = records_of(tmp_path / "c.jsonl", [3, 100])
    with pytest.raises(DataError) as error:
        read(records, workers=workers, overlong=Overlong.ERROR)
    assert str(error.value).startswith("c.jsonl:2: this conversation has 105 tokens")
    assert "Traceback" not in str(error.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "c.jsonl"
    records = records_of(path, [3, 5, 8])
    path.write_text("{}\n", encoding="utf-8")
    with pytest.raises(DataError) as error:
        read(records, workers=workers)
    assert str(path) in str(error.value)
    assert "Traceback" not in str(error.value)


def test_no_process_is_left(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    read(records_of(tmp_path / "c.jsonl", [5] * 50), workers=2)
    assert set(multiprocessing.active_children()) == before


def test_leaving_an_endless_stream_early_ends_its_workers(tmp_path: Path) -> None:
    records = records_of(tmp_path / "c.jsonl", [5] * 50)
    encode = ConversationEncoder(Parser(), load_tokenizer("bytes"), CAPACITY, Overlong.DROP)
    order = WindowOrder(rows=50, window_size=8, epochs=None, shuffle=True, seed=5)
    with ItemStream(records, encode, order, num_workers=2) as stream:
        next(iter(stream))
        assert len(multiprocessing.active_children()) == 2
    assert not multiprocessing.active_children()
