"""How the processes of a run talk about anything but tensors of the model, and how they fail.

Everything here is over gloo, also where there is CUDA: it is small, and no device should wait.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist

from data.errors import DataError
from data.exchange import Alone, Exchange
from sft.errors import ConfigError, TrainingError, said_by_first
from sft.launch import Place
from sft.parallel import TIMEOUT

# How gloo, NCCL and torch's store say that the other side is gone.
_LOST = (
    "connection closed",
    "connection reset",
    "connection refused",
    "connection was likely closed",
    "closed by peer",
    "reset by peer",
    "broken pipe",
    "socket timeout",
    "timed out",
    "remote process exited",
    "nccl communicator was aborted",
)

SHARED_ERRORS = (ConfigError, DataError, TrainingError)


class LostRankError(TrainingError):
    """Another process of the run is gone, so that this one cannot go on either."""


class GroupExchange:
    """An exchange over a group of processes; see :class:`data.exchange.Exchange`.

    Every process calls the same methods in the same order. Objects are pickled: they come from
    processes of this very run.
    """

    def __init__(self, group: Any) -> None:
        """Over a gloo group.

        Args:
            group: of torch.distributed.
        """
        self._group = group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)

    def gather(self, mine: Any) -> list[Any]:
        """What every process has, in the order of their ranks."""
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, mine, group=self._group)
        return everyone

    def deliver(self, parcels: Sequence[Any]) -> list[Any]:
        """Send each process its parcel; returns what each has sent here, by sender."""
        assert len(parcels) == self.size
        pickled: dict[int, bytes] = {}
        for parcel in parcels:
            # The processes that train one row get one and the same parcel.
            if id(parcel) not in pickled:
                pickled[id(parcel)] = pickle.dumps(parcel, protocol=pickle.HIGHEST_PROTOCOL)
        outgoing = [pickled[id(parcel)] for parcel in parcels]
        sizes = torch.tensor([len(data) for data in outgoing])
        incoming = torch.empty_like(sizes)
        dist.all_to_all_single(incoming, sizes, group=self._group)
        received = torch.empty(int(incoming.sum()), dtype=torch.uint8)
        dist.all_to_all_single(
            received,
            torch.frombuffer(bytearray(b"".join(outgoing)), dtype=torch.uint8),
            incoming.tolist(),
            sizes.tolist(),
            group=self._group,
        )
        parts = torch.split(received, incoming.tolist())
        return [pickle.loads(part.numpy().tobytes()) for part in parts]


def exchange_of_all(place: Place) -> Exchange:
    """The exchange of all processes of a run; their process group must be open."""
    return (
        Alone() if place.alone else GroupExchange(dist.new_group(backend="gloo", timeout=TIMEOUT))
    )


def by_rank_0[T](exchange: Exchange, work: Callable[[], T]) -> T:
    """Let the first process do something, and tell all what came of it.

    Raises:
        ConfigError: or ``DataError`` or ``TrainingError``, on every process, if it was raised.
    """
    done: T | None = None
    fault: Exception | None = None
    if exchange.rank == 0:
        try:
            done = work()
        except SHARED_ERRORS as error:
            fault = error
    done, fault = exchange.gather((done, fault))[0]
    if fault is not None:
        raise said_by_first(fault, exchange.rank)
    return cast(T, done)


def together[T](exchange: Exchange, work: Callable[[], T]) -> T:
    """Let every process do something; if it fails on one, it fails on all, and the first says why.

    Returns:
        What this process's work returned.

    Raises:
        ConfigError: or ``DataError`` or ``TrainingError``, on every process: that of the first
            process that has one.
    """
    done: T | None = None
    fault: Exception | None = None
    try:
        done = work()
    except SHARED_ERRORS as error:
        fault = error
    faults = exchange.gather(fault)
    first = next((rank for rank, found in enumerate(faults) if found is not None), None)
    if first is not None:
        raise said_by_first(faults[first] if fault is None else fault, exchange.rank)
    return cast(T, done)


@contextmanager
def lost_ranks_end_the_run(place: Place) -> Iterator[None]:
    """Say in one line that another process is gone, instead of a communication library's trace.

    Raises:
        LostRankError: this process noticed it.
    """
    try:
        yield
    except RuntimeError as error:
        text = " ".join(str(error).split())
        if place.alone or not any(sign in text.lower() for sign in _LOST):
            raise
        raise LostRankError(
            "another process of the run has ended, or cannot be reached any more "
            f"({text[:160]}). Why is in the output of the one that ended first"
        ) from error
