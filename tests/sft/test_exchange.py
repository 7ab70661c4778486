"""How the processes of a run talk, and how an error of one becomes an error of all."""

from __future__ import annotations

from typing import Any

import pytest

from data.errors import DataError
from sft.errors import ConfigError
from sft.exchange import (
    LostRankError,
    by_rank_0,
    exchange_of_all,
    lost_ranks_end_the_run,
    together,
)
from sft.launch import ALONE, Place
from sft.parallel import process_group
from tests.ranks import on_ranks


def fail(error: Exception) -> None:
    raise error


def talk(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with process_group(place, threads=1):
        exchange = exchange_of_all(place)
        rank = exchange.rank
        found["gathered"] = exchange.gather(rank * "x")
        shared = ["the same"] * 1000
        parcels = [shared, shared, f"only for the third, from {rank}"]
        found["delivered"] = exchange.deliver(parcels)
        found["decided"] = by_rank_0(exchange, lambda: f"by {rank}")
        for name, work in {
            "first": lambda: by_rank_0(exchange, lambda: fail(ConfigError("no"))),
            "second": lambda: together(
                exchange, lambda: fail(DataError("line 3")) if rank == 1 else None
            ),
        }.items():
            try:
                work()
            except (ConfigError, DataError) as error:
                found[name] = type(error).__name__, str(error), error.said_by_rank_0
        found["together"] = together(exchange, lambda: rank)
    return found


def test_three_processes_talk() -> None:
    for rank, found in enumerate(on_ranks(3, talk)):
        assert found["gathered"] == ["", "x", "xx"]
        third = [f"only for the third, from {sender}" for sender in range(3)]
        assert found["delivered"] == (third if rank == 2 else [["the same"] * 1000] * 3)
        assert found["decided"] == "by 0"
        assert found["first"] == ("ConfigError", "no", rank > 0)
        assert found["second"] == ("DataError", "line 3", rank > 0)
        assert found["together"] == rank


@pytest.mark.parametrize(
    ("place", "text", "kind"),
    [
        (
            Place(world_size=2),
            "[gloo/pair.cc] Connection closed by peer",
            LostRankError,
        ),
        (Place(world_size=2), "shape mismatch in gloo", RuntimeError),
        (ALONE, "Connection closed by peer", RuntimeError),
    ],
)
def test_what_counts_as_a_lost_process(place: Place, text: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, lost_ranks_end_the_run(place):
        raise RuntimeError(text)
    assert type(caught.value) is kind
