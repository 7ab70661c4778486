"""Functions on several processes that form one gloo group, as a run's processes do."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

# Started once per test process: every rank is a fork of it, with what takes seconds imported.
_PRELOAD = ["sft.parallel", "sft.build", "sft.step", "tests.conftest"]


def on_ranks(
    world_size: int, work: Callable[..., Any], *args: Any, timeout_seconds: float = 240
) -> list[Any]:
    """Run ``work(place, *args)`` on so many processes, each with one thread.

    Each process finds itself as under torchrun: ``process_group(place)`` meets the others.

    Args:
        world_size: how many.
        work: a function of a module; takes a :class:`sft.launch.Place` first.
        args: what else it takes; can be pickled, like what it returns.
        timeout_seconds: after which all are killed and the test fails.

    Returns:
        What each has returned, by rank.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    with tempfile.TemporaryDirectory() as directory:
        port = _free_port()
        processes = [
            context.Process(target=_rank, args=(rank, world_size, port, directory, work, args))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        end = time.monotonic() + timeout_seconds
        try:
            while any(p.is_alive() for p in processes) and time.monotonic() < end:
                # One that failed leaves the others waiting for it.
                if any(p.exitcode for p in processes):
                    time.sleep(2)
                    break
                time.sleep(0.02)
        finally:
            stuck = [p.pid for p in processes if p.is_alive()]
            for process in processes:
                process.kill()
                process.join()
        failures = [path.read_text("utf-8") for path in sorted(Path(directory).glob("*.failed"))]
        if failures or any(p.exitcode for p in processes):
            codes = [p.exitcode for p in processes]
            pytest.fail(f"exit codes {codes}, stuck {stuck}\n" + "\n".join(failures))
        files = [Path(directory) / f"{rank}.pt" for rank in range(world_size)]
        return [torch.load(file, weights_only=False) for file in files]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _rank(
    rank: int,
    world_size: int,
    port: int,
    directory: str,
    work: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    from sft.launch import Place

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    place = Place(rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)
    try:
        torch.save(work(place, *args), Path(directory) / f"{rank}.pt")
    except BaseException:
        text = f"rank {rank}:\n{traceback.format_exc()}"
        (Path(directory) / f"{rank}.failed").write_text(text, "utf-8")
        os._exit(1)
