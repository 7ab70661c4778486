"""The process group and Megatron-Core's parallel state, for the length of a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from torch._C._distributed_c10d import HashStore

from models.cpu import adapt_to_cpu
from sft.errors import ConfigError
from sft.launch import ALONE, Place
from sft.parallel_settings import ParallelSettings

# One process may fetch and convert a data set while the others wait. That one has died is noticed
# at once, by its connections.
TIMEOUT = timedelta(hours=2)


@contextmanager
def parallel_session(
    seed: int,
    threads: int | None,
    *,
    place: Place = ALONE,
    parallel: ParallelSettings | None = None,
) -> Iterator[torch.device]:
    """Set everything global up, and leave nothing of it behind.

    A second run in the same process must give what it would give in its own, so all that
    Megatron-Core and torch keep per process is made here and unmade at the end, also after an
    error.

    Args:
        seed: of torch's generators and Megatron-Core's.
        threads: torch threads on a CPU; None leaves torch's choice.
        place: of this process among those of the run.
        parallel: the layout; None: nothing but data parallelism.

    Yields:
        The device to train on.
    """
    with process_group(place, threads) as device:
        with parallel_layout(parallel or ParallelSettings(), seed):
            yield device


@contextmanager
def process_group(place: Place, threads: int | None = None) -> Iterator[torch.device]:
    """Join the other processes of the run; every one of them calls this.

    Args:
        place: of this process.
        threads: torch threads on a CPU; None leaves torch's choice.

    Yields:
        This process's device.

    Raises:
        ConfigError: there are fewer devices than processes here, or the others cannot be met.
    """
    adapt_to_cpu()
    cuda = torch.cuda.is_available()
    device = _device(place) if cuda else torch.device("cpu")
    threads_before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        _meet(place, "nccl" if cuda else "gloo")
        try:
            yield device
        finally:
            dist.destroy_process_group()
    finally:
        torch.set_num_threads(threads_before)
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()


@contextmanager
def parallel_layout(parallel: ParallelSettings, seed: int) -> Iterator[None]:
    """Megatron-Core's groups over the processes, and its generators of random numbers.

    Args:
        parallel: whose product divides the number of processes.
        seed: of the generators; each replica, and each stage of a pipeline, draws others.
    """
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tp,
        pipeline_model_parallel_size=parallel.pp,
        virtual_pipeline_model_parallel_size=(
            parallel.virtual_stages if parallel.virtual_stages > 1 else None
        ),
        context_parallel_size=parallel.cp,
    )
    try:
        replica = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        own = seed + 1_000_003 * replica + 1009 * parallel_state.get_pipeline_model_parallel_rank()
        torch.manual_seed(own)
        tensor_parallel.model_parallel_cuda_manual_seed(own)
        yield
    finally:
        tensor_parallel.get_cuda_rng_tracker().reset()
        parallel_state.destroy_model_parallel()


def _device(place: Place) -> torch.device:
    count = torch.cuda.device_count()
    if place.local_rank >= count:
        raise ConfigError(
            f"{place.local_world_size} processes on this machine, which has {count} CUDA devices: "
            f"each needs one of its own; start {count}, as torchrun --nproc-per-node {count}"
        )
    torch.cuda.set_device(place.local_rank)
    return torch.device("cuda", place.local_rank)


def _meet(place: Place, backend: str) -> None:
    if place.alone:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        return
    try:
        dist.init_process_group(
            backend, rank=place.rank, world_size=place.world_size, timeout=TIMEOUT
        )
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        line = next(iter(str(error).splitlines()), "")
        raise ConfigError(
            f"rank {place.rank} of {place.world_size}: the other processes cannot be met ({line}); "
            "MASTER_ADDR and MASTER_PORT must name the first one's machine and a free port there"
        ) from error
