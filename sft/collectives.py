"""What the ranks of a run tell each other about the step at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state


def summed_over_shares(values: Sequence[float]) -> tuple[float, ...]:
    """Sums over all that is computed apart, known to every rank of the world.

    What tensor-parallel ranks have they all have, so it counts once; of a pipeline the last stage
    has it.

    Args:
        values: of this rank.
    """
    counts = parallel_state.get_tensor_model_parallel_rank() == 0
    counts = counts and parallel_state.is_pipeline_last_stage()
    total = torch.tensor(
        list(values) if counts else [0.0] * len(values),
        dtype=torch.float64,
        device=torch.cuda.current_device(),
    )
    if dist.get_world_size() > 1:
        dist.all_reduce(total)
    return tuple(total.tolist())


def gathered(mine: Any) -> list[Any]:
    """What every rank of the world has, by rank."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def agreed_reason(mine: str | None) -> str | None:
    """A reason that some rank has, the same on all; None where none has one.

    Where several have one it is that of the first in the alphabet.
    """
    if dist.get_world_size() == 1:
        return mine
    # Mostly nobody has one, and that takes one small message.
    some = torch.tensor(mine is not None, dtype=torch.int32, device=torch.cuda.current_device())
    dist.all_reduce(some)
    return min(filter(None, gathered(mine))) if some else None
