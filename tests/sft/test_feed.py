"""Steps do not depend on how many processes share a stream, nor on where it was opened."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from data.energon import ConversationStream
from data.errors import DataError
from data.intake import Window
from data.jsonl import Records, open_jsonl
from data.packing.microbatches import Microbatch, to_microbatches
from data.shared_stream import StreamPosition
from sft.feed import Feed
from tests.sft.test_config import settle

LENGTHS = [5, 30, -1, 12, 90, 7, 50, 3, 3, 41, -1, 22, 9, 200, 18, 1, 2, 60, 33, 44, 71, 8] * 5
BASE = (
    "packing.capacity=128",
    "packing.pad_multiple=4",
    "data.overlong=drop",
    "data.num_workers=0",
)
REAL = ("train.global_batch_tokens=null", "train.global_batch_real_tokens=300")
LOADER = ("packing.mode=loader", "packing.buffer_size=9", "train.global_batch_tokens=384")
MODES = {
    "none": ("packing.mode=none", "train.global_batch_tokens=384", "train.micro_batch_size=3"),
    "trainer": ("packing.mode=trainer", "train.global_batch_tokens=384"),
    "trainer, samples": (
        *("packing.mode=trainer", "train.global_batch_tokens=null"),
        "train.global_batch_samples=7",
    ),
    "trainer, real tokens": ("packing.mode=trainer", *REAL),
    "loader": LOADER,
    "loader, real tokens": (*LOADER, *REAL),
    "loader, levelled": (*LOADER, "packing.level_window=3"),
}
EPOCHS = ("train.steps=null", "train.epochs=2")


class Rank:
    """One of several threads that stand for processes."""

    def __init__(self, rank: int, size: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, size
        self._board, self._barrier = board, barrier

    def gather(self, mine: Any) -> list[Any]:
        self._board[self.rank] = mine
        self._barrier.wait(timeout=60)
        everyone = list(self._board)
        self._barrier.wait(timeout=60)
        return everyone

    def deliver(self, parcels: Sequence[Any]) -> list[Any]:
        return [sent[self.rank] for sent in self.gather(parcels)]


@pytest.fixture(autouse=True)
def _one_reads_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Energon allows one reader in a process, and here several stand in one."""
    reading, windows = threading.Lock(), ConversationStream.windows

    def locked(self: ConversationStream[Any]) -> Iterator[Window]:
        own = windows(self)
        while True:
            with reading:
                window = next(own, None)
            if window is None:
                return
            yield window

    monkeypatch.setattr(ConversationStream, "windows", locked)


def on_threads[T](size: int, work: Callable[[Any], T]) -> list[T]:
    board, barrier = [None] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, [Rank(r, size, board, barrier) for r in range(size)]))


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return records_of(tmp_path / "c.jsonl", LENGTHS)


def records_of(path: Path, lengths: Sequence[int]) -> Records:
    lines = []
    for i, length in enumerate(lengths):
        turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a" * length}]
        lines.append("{broken" if length < 0 else json.dumps({"messages": turns, "i": i}))
    path.write_text("\n".join(lines), encoding="utf-8")
    return Records.of([open_jsonl(path)])


@dataclasses.dataclass
class Told:
    """What a process was given: its microbatches of each step, and what all know."""

    microbatches: list[list[Microbatch]]
    numbers: list[tuple[int, ...]]
    ends: list[StreamPosition]
    counts: dict[str, Any]
    imbalances: list[tuple[float, float]]


def told(feed: Feed, records: Records, start: StreamPosition | None, stop: int | None) -> Told:
    got = Told([], [], [], {}, [])
    plan = feed.plan(records)
    with feed.training_stream(records, start) as stream:
        for step in feed.steps(stream, plan):
            dealt = feed.deal(step)
            batch = feed.batch(stream, step, dealt)
            got.microbatches.append(to_microbatches(batch, feed.layout))
            # As a checkpoint keeps it.
            text = json.dumps(step.end.to_json())
            got.ends.append(StreamPosition.from_json(json.loads(text)))
            portions = dealt.portions
            got.numbers.append(
                (
                    sum(p.slot_tokens for p in portions),
                    sum(p.real_tokens for p in portions),
                    sum(p.loss_tokens for p in portions),
                )
            )
            got.imbalances.append((dealt.token_imbalance, dealt.cost_imbalance))
            if step.end.steps_done == stop:
                break
        got.counts = {
            **stream.accounting.to_json(),
            "rows": stream.rows,
            "fewest_rows": stream.fewest_rows,
        }
    return got


def run(
    records: Records,
    settings: Sequence[str],
    size: int = 1,
    *,
    model_ranks: int = 1,
    start: StreamPosition | None = None,
    stop: int | None = None,
    one_shape: bool = False,
) -> list[Told]:
    feed = Feed.of(*settle(*BASE, *settings))
    replicas = tuple(rank // model_ranks for rank in range(size))
    layout = dataclasses.replace(feed.layout, one_shape=one_shape)
    feed = dataclasses.replace(feed, replicas=replicas, layout=layout)
    return on_threads(
        size,
        lambda rank: told(dataclasses.replace(feed, exchange=rank), records, start, stop),
    )


def contents(tolds: Sequence[Told]) -> list[list[tuple[Any, ...]]]:
    """Of each step its microbatches with samples over the given processes, in any order."""
    return [
        sorted(
            (m.source_ids, m.tokens.tolist(), m.loss_mask.tolist())
            for t in tolds
            for m in t.microbatches[step]
            if m.source_ids
        )
        for step in range(len(tolds[0].microbatches))
    ]


@pytest.mark.parametrize("mode", MODES)
def test_steps_do_not_depend_on_the_processes(records: Records, mode: str) -> None:
    alone = run(records, (*MODES[mode], *EPOCHS))
    assert len(alone[0].microbatches) > 8
    used = sorted(i for s in contents(alone) for m in s for i in m[0])
    fits = [i for i, n in enumerate(LENGTHS) if 0 <= n <= 123]
    assert used == sorted(2 * [f"c.jsonl:{i + 1}" for i in fits])
    for size in (2, 3):
        several = run(records, (*MODES[mode], *EPOCHS), size)
        assert contents(several) == contents(alone)
        for one in several:
            assert one.counts == alone[0].counts
            assert one.ends == alone[0].ends
            assert one.imbalances == several[0].imbalances
            assert [n[1:] for n in one.numbers] == [n[1:] for n in alone[0].numbers]


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_goes_on_where_it_stood(records: Records, mode: str) -> None:
    settings = (*MODES[mode], *EPOCHS)
    whole = run(records, settings)
    steps = len(whole[0].ends)
    for done in (1, 5, steps):
        size = 1 + done % 3
        before = run(records, settings, 1 + (done + 1) % 2, stop=done)
        assert before[0].ends == whole[0].ends[:done]
        rest = run(records, settings, size, start=before[0].ends[-1])
        assert contents(rest) == contents(whole)[done:]
        assert rest[0].ends == whole[0].ends[done:]
        if done < steps:
            assert [t.counts for t in rest] == [whole[0].counts] * size


def test_workers_do_not_move_a_position(records: Records) -> None:
    settings = (*LOADER, "packing.level_window=3", "train.steps=7", "train.epochs=null")
    whole = run(records, settings, stop=7)
    start = whole[0].ends[3]
    rest = run(records, (*settings, "data.num_workers=2"), start=start, stop=7)
    assert contents(rest) == contents(whole)[4:]
    assert rest[0].counts == whole[0].counts


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("one_shape", [False, True])
def test_what_processes_get(records: Records, mode: str, one_shape: bool) -> None:
    # Four processes, two replicas of a model on two processes each.
    got = run(records, (*MODES[mode], *EPOCHS), 4, model_ranks=2, one_shape=one_shape)
    for step, numbers in enumerate(got[0].numbers):
        by_rank = [one.microbatches[step] for one in got]
        for mine, its in ((0, 1), (2, 3)):
            assert [m.tokens.tolist() for m in by_rank[mine]] == [
                m.tokens.tolist() for m in by_rank[its]
            ]
        assert len({len(mine) for mine in by_rank}) == 1
        trained = by_rank[0] + by_rank[2]
        assert numbers == (
            sum(m.tokens.numel() for m in trained),
            sum(m.real_tokens for m in trained),
            int(sum(m.loss_mask.sum() for m in trained)),
        )
        if one_shape:
            assert len({m.tokens.shape for m in trained}) == 1
        tokens = [sum(m.tokens.numel() for m in by_rank[r]) for r in (0, 2)]
        costs = [sum(n * n for m in by_rank[r] for n in m.lengths) for r in (0, 2)]
        expected = [2 * max(of) / sum(of) - 1 for of in (tokens, costs)]
        assert list(got[0].imbalances[step]) == pytest.approx(expected)


def test_padding_fills_up(records: Records) -> None:
    # Three rows a step for two replicas.
    got = run(records, (*LOADER, "train.steps=4"), 2, stop=4)
    for step in range(4):
        padding = [m for one in got for m in one.microbatches[step] if not m.source_ids]
        assert len(padding) == 1
        (row,) = padding
        assert row.lengths == () and row.real_tokens == row.loss_tokens == 0
        assert not row.loss_mask.any()


def test_more_processes_than_windows(records: Records) -> None:
    few = records.take(records.rows[:4])
    settings = ("packing.mode=trainer", "train.global_batch_tokens=128", *EPOCHS)
    assert contents(run(few, settings, 4)) == contents(run(few, settings))


def test_levelled_steps_have_rows_of_like_cost(records: Records) -> None:
    plain, levelled = (
        run(records, (*LOADER, f"packing.level_window={n}", *EPOCHS), 1)[0] for n in (1, 1000)
    )
    assert [len(s) for s in plain.microbatches] == [len(s) for s in levelled.microbatches]

    def ranges(of: Told) -> list[tuple[int, int]]:
        costs = [[sum(n * n for n in m.lengths) for m in step] for step in of.microbatches]
        return [(min(step), max(step)) for step in costs]

    # In one group of steps no row fits better into another step, and their order is drawn.
    ordered = sorted(ranges(levelled))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ordered))
    assert ordered != ranges(levelled)
    assert sorted(m[0] for s in contents([plain]) for m in s) == sorted(
        m[0] for s in contents([levelled]) for m in s
    )


@pytest.mark.parametrize("epochs", [True, False])
def test_bad_data_is_refused_alike(tmp_path: Path, epochs: bool) -> None:
    # All that is bad stands in one window, so one process of two reads it.
    lengths = [20] * 400
    lengths[256:300] = [-1] * 44
    records = records_of(tmp_path / "c.jsonl", lengths)
    settings = (
        *("packing.mode=trainer", "train.global_batch_tokens=256", "data.shuffle=false"),
        *(EPOCHS if epochs else ("train.steps=1000",)),
    )

    def outcome(size: int, fraction: float) -> set[str]:
        feed = Feed.of(*settle(*BASE, *settings, f"data.max_bad_fraction={fraction}"))

        def work(rank: Any) -> str:
            mine = dataclasses.replace(feed, exchange=rank, replicas=tuple(range(size)))
            try:
                told(mine, records, None, 60)
            except DataError as error:
                return str(error)
            return "fine"

        return set(on_threads(size, work))

    for size in (1, 2):
        assert outcome(size, 0.12) == {"fine"}
    refusals = [outcome(size, 0.1) for size in (1, 2)]
    assert refusals[0] == refusals[1] != {"fine"}
    assert len(refusals[0]) == 1
