"""What an optimizer keeps for every parameter, by the parameter's global name and whole shape.

Whoever held a state: one rank, the ranks of a pipeline or tensor-parallel layout, or those that
share it under the distributed optimizer, it is stored alike. So any layout and either optimizer
reads what any other has written. Megatron-Core's own state of a distributed optimizer is not
used. Where neither Apex nor Transformer Engine is installed it fails to load, and where it loads
it advances the step count once for each parameter instead of once a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params, FP32Optimizer
from torch import Tensor

from models.gpt import unwrapped

MASTER = "fp32_param"  # the optimizer's own copy of a weight that the model holds in 16 bits


@dataclass(frozen=True)
class Held:
    """How this rank holds the optimizer's state of one parameter.

    Attributes:
        sharded: the parameter with its place in the whole model.
        parameter: the model's.
        adam: the inner optimizer, torch's or one like it.
        main: what the inner optimizer updates: the parameter, its 32-bit copy, or this rank's
            range of either; None where another rank updates all of it.
        start: where the range begins in the flattened parameter.
        sharers: the ranks that hold the ranges; None where each holds everything.
    """

    sharded: Any
    parameter: Tensor
    adam: torch.optim.Optimizer
    main: Tensor | None
    start: int
    sharers: dist.ProcessGroup | None

    def states(self) -> dict[str, Tensor]:
        """This rank's range of each state that has an element for every weight."""
        if self.main is None:
            return {}
        found = {
            name: value
            for name, value in self.adam.state.get(self.main, {}).items()
            if name != "step" and isinstance(value, Tensor) and value.shape == self.main.shape
        }
        if found and self.main.dtype is not self.parameter.dtype:
            found[MASTER] = self.main.detach()
        return found

    def room(self, dtype: torch.dtype) -> Tensor:
        """Zeros in the parameter's shape."""
        return torch.zeros(self.parameter.shape, dtype=dtype, device=self.parameter.device)

    def own(self, whole: Tensor) -> Tensor:
        """This rank's range of something in the parameter's shape."""
        assert self.main is not None
        return whole.flatten()[self.start : self.start + self.main.numel()].view(self.main.shape)

    def sharded_as(self, name: str, data: Tensor, turned: int = 0) -> Any:
        """A state in the place of the parameter.

        Args:
            name: of the state.
            data: in the parameter's shape.
            turned: which of the sharers is to write it.
        """
        changes: dict[str, Any] = {"key": f"optimizer.{name}.{self.sharded.key}", "data": data}
        if hasattr(self.sharded, "dtype"):  # a factory makes its tensors from the data
            changes["dtype"] = data.dtype
        if self.sharers is not None:
            *outer, replica = self.sharded.replica_id
            assert replica == dist.get_rank(self.sharers), (self.sharded, replica)
            changes["replica_id"] = (*outer, (replica - turned) % dist.get_world_size(self.sharers))
        return replace(self.sharded, **changes)


def held_states(chunks: Sequence[Any], optimizer: Any) -> Iterator[Held]:
    """What is trained, in an order that is the same on ranks with the same part of the model."""
    places = _places(optimizer)
    for chunk in chunks:
        tensors, _ = extract_sharded_tensors_and_factories(unwrapped(chunk).sharded_state_dict())
        by_parameter = {id(part.data): part for part in tensors.values()}
        for parameter in unwrapped(chunk).parameters():
            if parameter.requires_grad:
                yield Held(by_parameter[id(parameter)], parameter, *places[id(parameter)])


def _places(optimizer: Any) -> dict[int, tuple[Any, Tensor | None, int, Any]]:
    """For every trained parameter, by identity: the last four of :class:`Held`."""
    places: dict[int, tuple[Any, Tensor | None, int, Any]] = {}
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if getattr(part, "is_stub_optimizer", False):
            continue
        if isinstance(part, DistributedOptimizer):
            for buffer in part.buffers:
                for parameter in buffer.param_index_map:
                    main, start = _own_range(part, parameter)
                    places[id(parameter)] = (part.optimizer, main, start, part.data_parallel_group)
            continue
        assert isinstance(part, FP32Optimizer | Float16OptimizerWithFloat16Params), type(part)
        copies = {id(p): p for group in part.optimizer.param_groups for p in group["params"]}
        for model_params, masters in _copied(part):
            for parameter, master in zip(model_params, masters, strict=True):
                copies.pop(id(master))
                places[id(parameter)] = (part.optimizer, master, 0, None)
        places.update((i, (part.optimizer, p, 0, None)) for i, p in copies.items())
    return places


def _copied(part: Any) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    if isinstance(part, Float16OptimizerWithFloat16Params):
        yield from zip(part.float16_groups, part.fp32_from_float16_groups, strict=True)


def _own_range(part: DistributedOptimizer, parameter: Tensor) -> tuple[Tensor | None, int]:
    if parameter not in part.model_param_group_index_map:
        return None, 0
    group, order = part.model_param_group_index_map[parameter]
    start: int = part._get_model_param_range_map(parameter)["param"].start
    return part.optimizer.param_groups[group]["params"][order], start


def agreed(held: Sequence[Held]) -> tuple[dict[str, torch.dtype], float | None]:
    """The names and types of the states, and how many steps the optimizer has done.

    A rank may hold nothing of its own, so all are asked.
    """
    mine = {name: value.dtype for h in held for name, value in h.states().items()}
    steps = {s for h in held if (s := _step_of(h)) is not None}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (mine, steps))
    kinds = {name: dtype for names, _ in everyone for name, dtype in names.items()}
    all_steps = {step for _, steps in everyone for step in steps}
    assert len(all_steps) <= 1, all_steps
    return dict(sorted(kinds.items())), next(iter(all_steps), None)


def _step_of(held: Held) -> float | None:
    if held.main is None or not held.adam.state.get(held.main):
        return None
    step = held.adam.state[held.main].get("step")
    if step is None:
        step = next((g["step"] for g in held.adam.param_groups if "step" in g), None)
    return None if step is None else float(step)


def gathered(held: Sequence[Held], kinds: dict[str, torch.dtype]) -> dict[str, Any]:
    """All states in the parameters' shapes, each on the rank that is to write it."""
    loads: dict[Any, list[int]] = {}
    gathered: dict[str, Any] = {}
    for i, h in enumerate(held):
        ranks = 1 if h.sharers is None else dist.get_world_size(h.sharers)
        load = loads.setdefault(h.sharers, [0] * ranks)
        writer = load.index(min(load))  # the one that writes least so far
        load[writer] += h.parameter.numel()
        states = h.states()
        gathered[str(i)] = {
            name: h.sharded_as(name, _whole(h, states.get(name), dtype, writer), writer)
            for name, dtype in kinds.items()
        }
    return gathered


def _whole(held: Held, mine: Tensor | None, dtype: torch.dtype, writer: int) -> Tensor:
    if held.sharers is None:
        assert mine is not None
        return mine
    whole = held.room(dtype)
    if mine is not None:
        held.own(whole).copy_(mine)
    # Ranges do not overlap, and adding 0 changes nothing.
    dist.reduce(whole, group=held.sharers, group_dst=writer)
    if dist.get_rank(held.sharers) == writer:
        return whole
    return torch.zeros((), dtype=dtype, device=whole.device).expand(whole.shape)  # takes no memory


@torch.no_grad()
def fill(held: Sequence[Held], loaded: dict[str, dict[str, Tensor]], step: float) -> None:
    """Set the optimizer to states, whether it has done a step or not.

    Args:
        held: those of :func:`held_states` of which this rank holds something.
        loaded: for each, by its number, its states in the parameter's shape.
        step: how many steps the optimizer has done.
    """
    for i, h in enumerate(held):
        assert h.main is not None
        states = {name: h.own(whole).clone() for name, whole in loaded[str(i)].items()}
        master = states.pop(MASTER, None)
        if master is not None:
            h.main.copy_(master)
        if type(h.adam).__module__.startswith("torch."):
            # Its own tensor for each: the optimizer counts them up in place.
            states["step"] = torch.tensor(step, dtype=torch.float32)
        h.adam.state[h.main] = states
    for adam in {id(h.adam): h.adam for h in held}.values():
        if not type(adam).__module__.startswith("torch."):
            for group in adam.param_groups:
                group["step"] = int(step)
