"""What training needs to go on, besides weights and data: optimizer, schedule, random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from sft.optimizer_state import MASTER, agreed, fill, gathered, held_states
from sft.sharded import DamagedCheckpoint, read, read_common, write_now

_FORMAT = 1


def save_training_state(
    directory: Path,
    chunks: Sequence[Any],
    optimizer: Any,
    scheduler: Any,
) -> None:
    """Leave the state of training after an optimizer step; every rank calls this.

    Args:
        directory: there, and empty.
        chunks: this rank's GPTModels, bare or wrapped.
        optimizer: Megatron-Core's, of these chunks.
        scheduler: Megatron-Core's.

    Raises:
        TrainingError: it cannot be written.
    """
    held = list(held_states(chunks, optimizer))
    kinds, step = agreed(held)
    write_now(
        {
            "about": {
                "format": _FORMAT,
                "layout": _layout(),
                "kinds": {name: str(dtype).removeprefix("torch.") for name, dtype in kinds.items()},
                "step": step,
                "scheduler_steps": scheduler.num_steps,
            },
            "optimizer": gathered(held, kinds),
            "rng": _sharded_rng(_rng_states()),
        },
        directory,
    )


def load_training_state(
    directory: Path, chunks: Sequence[Any], optimizer: Any, scheduler: Any
) -> None:
    """Go on from a state; every rank calls this, after the weights are loaded.

    Random number generators continue where the number of ranks and the parallel layout are those
    of the state; under any other layout they keep their seeds, since a rank has no predecessor.
    The schedule continues at its step, with the rates that it is set to here.

    Args:
        directory: from :func:`save_training_state`.
        chunks: this rank's GPTModels, bare or wrapped.
        optimizer: Megatron-Core's, of these chunks.
        scheduler: Megatron-Core's.

    Raises:
        DamagedCheckpoint: it cannot be read, or is not the state of this model and optimizer.
    """
    about = read_common(directory).get("about")
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise DamagedCheckpoint(directory, f"is not a training state of format {_FORMAT}")
    held = [h for h in held_states(chunks, optimizer) if h.main is not None]
    kinds = {name: getattr(torch, dtype) for name, dtype in about["kinds"].items()}
    wanted: dict[str, Any] = {
        "optimizer": {
            str(i): {name: h.sharded_as(name, h.room(dtype)) for name, dtype in kinds.items()}
            for i, h in enumerate(held)
        }
    }
    same_layout = about["layout"] == _layout()
    if same_layout:
        wanted["rng"] = _sharded_rng(None)
    loaded = read(wanted, directory)
    if about["step"] is not None:
        fill(held, loaded["optimizer"], about["step"])
    if MASTER not in kinds:
        optimizer.reload_model_params()
    # It adds to what it stands at, and a new schedule stands at its first step.
    scheduler.num_steps = 0
    scheduler.step(increment=about["scheduler_steps"])
    if same_layout:
        _restore_rng(loaded["rng"])


def _layout() -> dict[str, int]:
    return {
        "ranks": dist.get_world_size(),
        "tp": parallel_state.get_tensor_model_parallel_world_size(),
        "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        "cp": parallel_state.get_context_parallel_world_size(),
        "ep": parallel_state.get_expert_model_parallel_world_size(),
    }


def _rng_states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    states["tracker"] = get_cuda_rng_tracker().get_states()
    return states


def _sharded_rng(states: dict[str, Any] | None) -> ShardedObject:
    return ShardedObject("rng", states, (dist.get_world_size(),), (dist.get_rank(),))


def _restore_rng(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    if states["tracker"]:  # setting none would make an unused tracker a used one
        get_cuda_rng_tracker().set_states(states["tracker"])
