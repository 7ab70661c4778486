"""Checkpoints that are written while training goes on.

A rank copies its part of the tensors and a thread writes them; what needs all ranks, planning and
completing, is done by the thread that trains, between two steps. A forked process, which is
Megatron-Core's way, could hang on a lock that one of the parent's threads held when it was forked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sft.sharded import Writing


class BackgroundWriter:
    """At most one checkpoint on its way; every rank has one and calls it alike."""

    def __init__(self) -> None:
        self._writings: list[Writing] = []
        self._thread: threading.Thread | None = None
        self._complete: Callable[[], None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is on its way."""
        return bool(self._writings)

    def write(self, state: dict[str, Any], directory: Path) -> None:
        """Copy what is to be written (a ``sft.sharded.Write``); :meth:`start` starts the writing.

        Args:
            state: sharded tensors and objects; the tensors may change when this returns.
            directory: there, and empty.
        """
        assert self._thread is None, "the one before must be finished first"
        self._writings.append(Writing(state, directory, detached=True))

    def start(self, complete: Callable[[], None]) -> None:
        """Write what was copied.

        Args:
            complete: called on every rank by :meth:`finish` when all ranks have written all.
        """
        assert self._thread is None and self._writings
        self._complete = complete
        self._thread = threading.Thread(
            target=_run, args=(tuple(self._writings),), name="checkpoint", daemon=True
        )
        self._thread.start()

    def finish(self, *, blocking: bool) -> bool:
        """Complete the checkpoint if all ranks have written it.

        Args:
            blocking: wait until they have.

        Returns:
            Whether none is on its way any more.

        Raises:
            TrainingError: a rank could not write; on every rank.
        """
        if self._thread is None:
            return True
        if blocking:
            self._thread.join()
        elif not _all(not self._thread.is_alive()):
            return False
        writings, complete = self._writings, self._complete
        self._writings, self._thread, self._complete = [], None, None
        for writing in writings:
            writing.settle()
        assert complete is not None
        complete()
        return True

    def give_up(self) -> None:
        """Let the thread end, and forget what it wrote; after an error, and without the others."""
        if self._thread is not None:
            self._thread.join()
        self._writings, self._thread, self._complete = [], None, None


def _run(writings: tuple[Writing, ...]) -> None:
    for writing in writings:
        writing.run()


def _all(mine: bool) -> bool:
    on_cuda = dist.get_backend() == "nccl"
    votes = torch.tensor(int(mine), device="cuda" if on_cuda else "cpu")
    dist.all_reduce(votes, op=dist.ReduceOp.MIN)
    return bool(votes.item())
