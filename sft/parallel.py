"""The process group and Megatron-Core's parallel state, for the length of a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from torch._C._distributed_c10d import HashStore

from models.cpu import adapt_to_cpu


@contextmanager
def parallel_session(seed: int, threads: int | None) -> Iterator[torch.device]:
    """Set everything global up, and leave nothing of it behind.

    A second run in the same process must give what it would give in its own, so all that
    Megatron-Core and torch keep per process is made here and unmade at the end, also after an
    error.

    Args:
        seed: of torch's generators, and of Megatron-Core's where there is CUDA.
        threads: torch threads on a CPU; None leaves torch's choice.

    Yields:
        The device to train on.
    """
    adapt_to_cpu()
    cuda = torch.cuda.is_available()
    threads_before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    dist.init_process_group("nccl" if cuda else "gloo", store=HashStore(), rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel()
        torch.manual_seed(seed)
        if cuda:
            tensor_parallel.model_parallel_cuda_manual_seed(seed)
        yield torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
        torch.set_num_threads(threads_before)
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
