"""LoRA on one of Megatron-Core's linear layers, under tensor and sequence parallelism.

``W x + scale * B A x`` (Hu et al. 2021, section 4.1). Megatron-Core keeps several matrices in one
weight (query, key and value; gate and up); each target has its own A and B, and what B makes is
added to the rows of its matrix.

Shapes: s positions, b conversations of a rectangle (1 for a row), r rank, i input and o output
channels of a matrix. Under tensor parallelism, i, o and under sequence parallelism s, are this
rank's part where a comment says so.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    get_cuda_rng_tracker,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor


@dataclass(frozen=True)
class FusedRows:
    """How the rows of several matrices lie in one: by groups, and in each one matrix after another.

    Attributes:
        groups: on this rank.
        widths: rows of each matrix in a group, in their order.
    """

    groups: int
    widths: Mapping[str, int]

    def add(self, fused: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
        """Add to each matrix's channels of the last dimension what ``parts`` has for it.

        Args:
            fused: ``[..., groups * sum(widths)]``; stays as it is.
            parts: ``[..., groups * width]`` for some of the matrices.
        """
        if len(self.widths) == 1:
            (only,) = self.widths
            return fused + parts[only]
        grouped = torch.split(self._by_group(fused), list(self.widths.values()), dim=-1)
        pieces = [
            piece + self._by_group(parts[name]) if name in parts else piece
            for name, piece in zip(self.widths, grouped, strict=True)
        ]
        return torch.cat(pieces, dim=-1).flatten(-2)

    def _by_group(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.groups, -1))


class Adapter(torch.nn.Module):
    """The two matrices of one target.

    Attributes:
        A: ``[r, i]``; under tensor parallelism i is split where the layer's input is.
        B: ``[o, r]``; under tensor parallelism o is split where the layer's output is.
    """

    def __init__(self, A: Tensor, B: Tensor) -> None:
        super().__init__()
        self.A = torch.nn.Parameter(A)
        self.B = torch.nn.Parameter(B)


class LowRankBranch(torch.nn.ModuleDict):
    """What is added to the output of one layer: the adapters of its targets, by name.

    Between A and B the hidden channels cross the ranks, r numbers a position: in a column-parallel
    layer B's outputs are split, so the gradients that come back from it are summed; in a
    row-parallel layer A's inputs are split, so its results are.

    Attributes:
        rows: where each matrix lies in the layer's output.
        scale: multiplies B A.
        dropout: of A's inputs.
        column: whether the layer is column-parallel.
        sequence_parallel: whether its input (column) or output (row) is split by position.
        tp_group: its tensor-parallel ranks.
    """

    def __init__(
        self,
        adapters: Mapping[str, Adapter],
        *,
        rows: FusedRows,
        scale: float,
        dropout: float,
        column: bool,
        sequence_parallel: bool,
        tp_group: Any,
    ) -> None:
        super().__init__(adapters)
        self.rows = rows
        self.scale = scale
        self.dropout = dropout
        self.column = column
        self.sequence_parallel = sequence_parallel
        self.tp_group = tp_group
        for adapter in adapters.values():
            split, whole = (adapter.B, adapter.A) if column else (adapter.A, adapter.B)
            # The gradient norm counts a parameter that every rank holds whole only once.
            split.tensor_model_parallel = True  # type: ignore[attr-defined]
            split.partition_dim = 0 if column else 1  # type: ignore[attr-defined]
            split.partition_stride = 1  # type: ignore[attr-defined]
            # It sees this rank's positions only; Megatron-Core sums its gradient over the ranks.
            whole.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]

    @property
    def adapters(self) -> dict[str, Adapter]:
        """The adapters by target."""
        return cast(dict[str, Adapter], dict(self.items()))

    def forward(self, x: Tensor, output: Tensor) -> Tensor:
        """The layer's output with the adapters' added.

        Args:
            x: ``[s, b, i]``, the layer's input.
            output: ``[s, b, sum of o]``, what the frozen layer makes of it.
        """
        adapters = self.adapters
        a = torch.cat([adapter.A for adapter in adapters.values()])
        hidden = self._across_ranks(F.linear(self._dropped(x), a)) * self.scale
        parts = torch.split(hidden, a.shape[0] // len(adapters), dim=-1)
        added = {
            name: F.linear(part, adapter.B)
            for (name, adapter), part in zip(adapters.items(), parts, strict=True)
        }
        return self.rows.add(output, added)

    def merged_into(self, weight: Tensor) -> Tensor:
        """The layer's weight with scale * B A added, in fp32, ``[sum of o, i]``."""
        parts = {
            # Transposed: rows.add works on the last dimension.
            name: (self.scale * (adapter.B.float() @ adapter.A.float())).t()
            for name, adapter in self.adapters.items()
        }
        return self.rows.add(weight.float().t(), parts).t()

    def whole(self) -> dict[str, tuple[Tensor, Tensor]]:
        """A ``[r, i]`` and B ``[o, r]`` by target; all tensor-parallel ranks must ask."""
        return {
            name: (a.A.detach(), self._gathered(a.B, dim=0))
            if self.column
            else (self._gathered(a.A, dim=1), a.B.detach())
            for name, a in self.adapters.items()
        }

    def sharded_state_dict(
        self, prefix: str, sharded_offsets: tuple[Any, ...], metadata: dict[str, Any]
    ) -> dict[str, Any]:
        """For Megatron-Core's distributed checkpoints, which load under any tensor parallelism."""
        split, dim = ("B", 0) if self.column else ("A", 1)
        sharded: dict[str, Any] = make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {f"{name}.{split}": dim for name in self},
            sharded_offsets,
            tp_group=self.tp_group,
            dp_cp_group=metadata["dp_cp_group"],
        )
        return sharded

    def _across_ranks(self, hidden: Tensor) -> Tensor:
        """Sum over the tensor-parallel ranks, forward or backward; all positions for B's part."""
        exchange = {
            (True, False): copy_to_tensor_model_parallel_region,
            (True, True): gather_from_sequence_parallel_region,
            (False, False): reduce_from_tensor_model_parallel_region,
            (False, True): reduce_scatter_to_sequence_parallel_region,
        }[self.column, self.sequence_parallel]
        return cast(Tensor, exchange(hidden, group=self.tp_group))

    def _dropped(self, x: Tensor) -> Tensor:
        if not self.dropout or not self.training:
            return x
        input_is_split = self.sequence_parallel or not self.column
        if input_is_split and get_cuda_rng_tracker().is_initialized():
            # Other numbers on every rank: each drops of its own part.
            with get_cuda_rng_tracker().fork():
                return F.dropout(x, self.dropout)
        return F.dropout(x, self.dropout)

    def _gathered(self, tensor: Tensor, *, dim: int) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(self.tp_group.size())]
        torch.distributed.all_gather(parts, tensor.detach().contiguous(), group=self.tp_group)
        return torch.cat(parts, dim=dim)


class AdaptedLinear(torch.nn.Module):
    """One of Megatron-Core's linear layers with a branch; use :func:`adapt`, not the constructor.

    The layer stays the module that Megatron-Core built, under its name, with its weight and all
    else that is read from it; only its class changes, to one that derives from this and from the
    class it had, as ``torch.nn.utils.parametrize`` does it too.
    """

    plain: type[torch.nn.Module]
    lora: LowRankBranch

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Output and bias, as the layer itself answers."""
        output, bias, *more = super().forward(x)
        if isinstance(output, tuple):
            output, *more = output
        # Transformer Engine's layer with a norm in it says what the norm has made of x.
        return self.lora(more[0] if more else x, output), bias

    def sharded_state_dict(
        self,
        prefix: str = "",
        sharded_offsets: tuple[Any, ...] = (),
        metadata: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The layer's own, under the names it has without adapters, and the adapters'."""
        assert metadata is not None
        sharded: dict[str, Any] = super().sharded_state_dict(  # type: ignore[misc]
            prefix, sharded_offsets, metadata
        )
        branch = self.lora.sharded_state_dict(f"{prefix}lora.", sharded_offsets, metadata)
        return sharded | branch


@functools.cache
def _adapted_class(plain: Any) -> type[torch.nn.Module]:
    return type(f"LoRA{plain.__name__}", (AdaptedLinear, plain), {"plain": plain})


# What Transformer Engine calls the switch of a layer that holds a norm.
_ANSWER_WITH_NORM = "return_layernorm_output"


def adapt(linear: torch.nn.Module, branch: LowRankBranch) -> None:
    """Add a branch to a layer, in place."""
    assert not isinstance(linear, AdaptedLinear), "the layer has a branch"
    plain: Any = type(linear)
    linear.lora = branch
    linear.__class__ = _adapted_class(plain)
    if hasattr(linear, _ANSWER_WITH_NORM):
        setattr(linear, _ANSWER_WITH_NORM, True)


def merge_branch(linear: AdaptedLinear) -> None:
    """Add the branch to the layer's weight and remove it; the layer is what it was before."""
    weight = cast(Tensor, linear.weight)
    with torch.no_grad():
        weight.copy_(linear.lora.merged_into(weight))
    linear.__class__ = linear.plain  # type: ignore[assignment]
    del linear.lora
    if hasattr(linear, _ANSWER_WITH_NORM):
        setattr(linear, _ANSWER_WITH_NORM, False)
