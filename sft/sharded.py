"""Tensors that several ranks hold parts of: written to a directory together, and read from it.

The format is Megatron-Core's ``torch_dist``: whoever reads may hold other parts. The planning is
Megatron-Core's, the writing is ours: there, a rank that cannot write leaves the others waiting,
and the reason is lost.
"""

from __future__ import annotations

import logging
import pickle
import queue
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import (
    CheckpointingConfig,
    CheckpointingException,
    save_config,
)
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint.api import CheckpointException

from sft.errors import TrainingError, said_by_first

# What unreadable bytes can come out as.
_UNREADABLE = (
    CheckpointException,
    CheckpointingException,
    OSError,
    EOFError,
    pickle.UnpicklingError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ImportError,
    AssertionError,
)


class DamagedCheckpoint(Exception):
    """A checkpoint does not hold what it should.

    Attributes:
        path: the file or directory.
        reason: what is wrong with it, in words that follow the path.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


def write_now(state: dict[str, Any], directory: Path) -> None:
    """Write a state; every rank calls this, and it returns when all have written.

    Args:
        state: Megatron-Core's sharded tensors and objects, and what is the same on all ranks.
        directory: there, and empty.

    Raises:
        TrainingError: a rank cannot write; on every rank.
    """
    writing = _Writing(state, directory)
    writing.run()
    writing.settle()


class _Writing:
    """One state on its way to a directory: planned by all ranks, written by each, then settled."""

    def __init__(self, state: dict[str, Any], directory: Path) -> None:
        """Plan who writes what; every rank calls this.

        Args:
            state: as for :func:`write_now`.
            directory: there, and empty.
        """
        # Megatron-Core would start a server process, to carry results out of a writer's process.
        filesystem_async._results_queue = queue.Queue()
        # It announces at the first that another package is to do what is not used here.
        logging.getLogger(TorchDistSaveShardedStrategy.__module__).setLevel(logging.ERROR)
        plan = _Plan()
        dist_checkpointing.save(
            state,
            str(directory),
            sharded_strategy=plan,
            async_sharded_save=True,
            async_strategy="mcore",
        )
        assert plan.writer is not None
        self._directory, self._plan, self._writer = directory, plan, plan.writer
        self._buckets = [
            (path, key, (items, [(item, tensor.detach().cpu()) for item, tensor in tensors]))
            for path, key, (items, tensors) in plan.writer.write_buckets
        ]
        self._writer.write_buckets = []  # what is copied may go
        self._results: list[Any] = []
        self._fault: Exception | None = None

    def run(self) -> None:
        """Write this rank's part; no collective, and raises nothing."""
        transforms = [self._writer.transforms] if hasattr(self._writer, "transforms") else []

        def write(numbered: tuple[int, Any]) -> Any:
            number, bucket = numbered
            return FileSystemWriterAsync.write_preloaded_data(
                transforms, number, bucket, None, None, True
            )[1]

        with ThreadPoolExecutor(max(1, len(self._buckets))) as threads:
            outcomes = list(threads.map(write, enumerate(self._buckets)))
        self._buckets = []  # on a GPU a copy of the model hangs on them
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                self._fault = outcome
            else:
                self._results += outcome

    def settle(self) -> None:
        """When it has run: complete the directory; every rank calls this.

        Raises:
            TrainingError: a rank could not write; on every rank.
        """
        self._raise_alike(self._fault)
        everyone: list[Any] | None = [None] * dist.get_world_size() if _leads() else None
        dist.gather_object(self._results, everyone)
        self._raise_alike(self._complete(everyone) if everyone is not None else None)

    def _complete(self, results: list[Any]) -> Exception | None:
        try:
            self._writer.finish(self._plan.metadata, results)
            save_config(
                CheckpointingConfig(self._plan.backend, self._plan.version), str(self._directory)
            )
        except OSError as error:
            return error
        return None

    def _raise_alike(self, fault: Exception | None) -> None:
        reasons: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(reasons, None if fault is None else _why(fault))
        for rank, reason in enumerate(reasons):
            if reason is not None:
                of_rank = f", says rank {rank}" if len(reasons) > 1 else ""
                error = TrainingError(
                    f"{self._directory}: cannot be written ({reason}{of_rank}). Make room or mend "
                    "the permissions, and go on from the last checkpoint"
                )
                raise said_by_first(error, dist.get_rank())


class _Plan(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Megatron-Core's way to save, as far as who writes what."""

    def __init__(self) -> None:
        super().__init__()
        self.writer: Any = None
        self.metadata: Any = None

    def _get_save_and_finalize_callbacks(
        self, writer: Any, save_state_dict_ret: Any, async_strategy: str
    ) -> Any:
        _, self.metadata, _ = save_state_dict_ret
        self.writer = writer
        return AsyncRequest(None, (), [])


def read(state: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Read what a state asks for; every rank calls this, and each may ask for other parts.

    Args:
        state: sharded tensors and objects; the tensors are overwritten.
        directory: that was written.

    Returns:
        ``state`` with plain tensors in place of the sharded ones, and what was not sharded.

    Raises:
        DamagedCheckpoint: it cannot be read, or lacks something; on every rank.
    """
    with _cannot_be_read(directory):
        loaded: dict[str, Any] = dist_checkpointing.load(
            state, str(directory), validate_access_integrity=False
        )
        return loaded


def read_common(directory: Path) -> Mapping[str, Any]:
    """What a directory holds that was the same on all ranks.

    Raises:
        DamagedCheckpoint: it cannot be read.
    """
    with _cannot_be_read(directory):
        common: Mapping[str, Any] = dist_checkpointing.load_common_state_dict(str(directory))
        return common


@contextmanager
def _cannot_be_read(directory: Path) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            # On its own deprecations, which Megatron-Core meets.
            warnings.filterwarnings("ignore", module=r"torch\.distributed\.checkpoint")
            yield
    except _UNREADABLE as error:
        raise DamagedCheckpoint(directory, f"cannot be read ({_why(error)})") from error


def _why(error: BaseException) -> str:
    """The system's reason where there is one, else the error's first line."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def _leads() -> bool:
    return dist.get_rank() == 0
