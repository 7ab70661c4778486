"""One optimizer step under a parallel layout, and all that can be compared of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from torch import Tensor

from data.packers import load_packer
from data.packing.batch import Pack, StepBatch
from data.packing.deal import Deal, deal
from data.packing.microbatches import Layout, Microbatch, to_microbatches
from data.packing.settings import PackingMode
from data.padding import required_pad_multiple
from data.sample import Sample
from data.thd import padding_row
from models import lora
from models.gpt import KernelPath, build_chunks, unwrapped
from models.lora_settings import LoRASettings
from models.shapes import GPTShape
from sft.build import wrapped
from sft.launch import Place
from sft.optimizers import AdamW
from sft.parallel import parallel_layout, process_group
from sft.parallel_settings import ParallelSettings
from sft.settings import LossAverage
from sft.step import StepRunner
from tests.conftest import make_sample

SHAPE = GPTShape(
    num_layers=4,
    hidden_size=32,
    ffn_hidden_size=48,
    num_attention_heads=4,
    num_query_groups=2,
    context_length=128,
    init_std=0.05,
)
CAPACITY = 128
UNEVEN = tuple(make_sample(n, seed=n) for n in (90, 7, 61, 33, 128, 2, 45, 80, 19, 104, 12, 55))
SILENT = replace(make_sample(120), targets=torch.zeros(120).bool().numpy(), source_id="silent")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is trained, and how it is shared out.

    Attributes:
        parallel: the layout.
        mode: who packs.
        real: the kernel gets the real boundaries beside the padded ones.
        average: of the loss.
        samples: of the step.
        shape: of the model.
        low_rank: only adapters are trained.
    """

    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    mode: PackingMode = PackingMode.TRAINER
    real: bool = True
    average: LossAverage = LossAverage.TOKEN
    samples: tuple[Sample, ...] = UNEVEN
    shape: GPTShape = SHAPE
    low_rank: bool = False

    @property
    def alone(self) -> Cell:
        """The same on one process."""
        return replace(self, parallel=ParallelSettings())


@dataclass(frozen=True)
class Item:
    """What :func:`data.packing.deal.deal` is told of a sample or a pack."""

    lengths: tuple[int, ...]
    loss_tokens: int


Part = tuple[str, tuple[int, ...], tuple[int, ...], int, Tensor]


@dataclass
class Found:
    """What one process has of a step.

    Attributes:
        loss: of the step.
        norm: of its gradient.
        loss_after: of the same samples, after the optimizer's step.
        gradients: parts with their places; empty under the distributed optimizer.
        weights: after the optimizer's step.
    """

    loss: float
    norm: float
    loss_after: float
    gradients: list[Part] = field(default_factory=list)
    weights: list[Part] = field(default_factory=list)


def measure(place: Place, cells: Sequence[Cell]) -> list[Found]:
    """Go through cells, one after the other, as one process of their layouts."""
    found = []
    with process_group(place, threads=1):
        for cell in cells:
            with parallel_layout(cell.parallel, seed=1):
                found.append(_a_step(place, cell))
    return found


def _a_step(place: Place, cell: Cell) -> Found:
    parallel = cell.parallel
    bare = build_chunks(
        cell.shape,
        tokenizer_vocab_size=262,
        kernels=KernelPath.TORCH,
        seed=5,
        sequence_parallel=parallel.sp,
    )
    if cell.low_rank:
        lora.attach(bare, LoRASettings(rank=3, alpha=4.0), seed=1)
        _give_values(bare)
    chunks = wrapped(bare, distributed_optimizer=parallel.distributed_optimizer)
    optimizer = AdamW(lr=0.001).build(chunks)
    runner = StepRunner(
        chunks=chunks,
        device=torch.device("cpu"),
        average=cell.average,
        real_boundaries=cell.real,
    )
    given = microbatches(place, cell)
    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    loss = runner.forward_backward(given).value
    gradients = []
    if not parallel.distributed_optimizer:
        grads = {id(p): p.main_grad for c in bare for p in c.parameters() if p.requires_grad}
        gradients = list(_parts(bare, grads))
    _, norm, _ = optimizer.step()
    weights = {id(p): p.detach() for c in bare for p in c.parameters() if p.requires_grad}
    after = runner.forward(given).value
    return Found(loss, float(norm), after, gradients, list(_parts(bare, weights)))


def _give_values(chunks: Sequence[Any]) -> None:
    """Adapters whose B is not 0, so that every matrix has a gradient."""
    for chunk in chunks:
        for _, branch in lora.branches(chunk):
            for adapter in branch.adapters.values():
                # The same number everywhere is the same under any layout.
                adapter.B.data.fill_(0.02)


def microbatches(place: Place, cell: Cell) -> list[Microbatch]:
    """What this process trains, dealt as a run deals it."""
    parallel = cell.parallel
    layout = Layout(
        mode=cell.mode,
        packer=load_packer("ffd"),
        capacity=CAPACITY,
        # The same everywhere, so that all layouts pack the same rows.
        pad_multiple=math.lcm(
            8,
            required_pad_multiple(
                tensor_parallel=parallel.tp,
                context_parallel=parallel.cp,
                sequence_parallel=parallel.sp,
            ),
        ),
        pad_id=256,
        micro_batch_size=3,
        one_shape=parallel.pp > 1,
    )
    replica = parallel.replicas(place.world_size)[place.rank]
    replicas = parallel.data_parallel(place.world_size)
    if cell.mode is not PackingMode.LOADER:
        items = [Item((len(s),), s.loss_tokens) for s in cell.samples]
        return to_microbatches(
            _step_batch(deal(items, layout, replicas), replica, cell.samples), layout
        )
    bins = layout.bins([len(s) for s in cell.samples])
    packs = [Pack.of(layout.loader_row([cell.samples[i] for i in b])) for b in bins]
    dealt = deal([Item(p.row.lengths, p.row.loss_tokens) for p in packs], layout, replicas)
    mine = [
        packs[p.items[0]] if p.items else Pack.of(padding_row(CAPACITY, pad_id=layout.pad_id))
        for p in dealt.replicas[replica]
    ]
    return to_microbatches(StepBatch.from_packs(mine), layout)


def _step_batch(dealt: Deal, replica: int, samples: Sequence[Sample]) -> StepBatch:
    return StepBatch(
        samples=tuple(samples),
        bins=tuple(p.items for p in dealt.replicas[replica]),
        shape=dealt.shape,
    )


def _parts(chunks: Sequence[Any], values: dict[int, Tensor]) -> Iterator[Part]:
    """Values of parameters, by identity, with their places in the whole model."""
    left = set(values)
    for chunk in chunks:
        for part in unwrapped(chunk).sharded_state_dict().values():
            value = values.get(id(part.data))
            if value is None:
                value = values.get(id(getattr(part.data, "_base", None)))
            if value is None:
                continue
            left -= {id(part.data), id(getattr(part.data, "_base", None))}
            if isinstance(part, ShardedTensorFactory):
                built = part.build_fn(part.key, value, part.replica_id, part.flattened_range)
                pieces = built.values() if isinstance(built, dict) else built
            else:
                pieces = [replace(part, data=value)]
            for piece in pieces:
                assert isinstance(piece, ShardedTensor)
                yield (
                    piece.key,
                    tuple(piece.global_shape),
                    tuple(piece.global_offset),
                    piece.prepend_axis_num,
                    piece.data.clone(),
                )
    assert not left, "a parameter is not in the sharded state"


def whole(parts: Sequence[Part]) -> dict[str, Tensor]:
    """Every matrix put together of the parts of all processes."""
    found: dict[str, Tensor] = {}
    for key, shape, offset, axes, data in parts:
        tensor = found.setdefault(key, torch.full(shape, torch.nan))
        sizes = (1,) * axes + tuple(data.shape)
        at = tuple(slice(o, o + n) for o, n in zip(offset, sizes, strict=True))
        had = tensor[at]
        # What several processes hold, they hold alike.
        assert had.isnan().any() or torch.allclose(had, data.reshape(sizes), 1e-5, 1e-7), key
        tensor[at] = data.reshape(sizes)
    assert all(not tensor.isnan().any() for tensor in found.values()), "a part is missing"
    return found


@dataclass(frozen=True)
class Difference:
    """How far a layout is from one process, relative; ``gradient`` None where it is not whole."""

    loss: float
    norm: float
    gradient: float | None
    weights: float
    loss_after: float


def difference(ranks: Sequence[Found], alone: Found) -> Difference:
    """The largest over all processes; of gradients and weights, of the whole vector."""

    def relative(name: str) -> float:
        want = getattr(alone, name)
        return max(abs(getattr(rank, name) - want) for rank in ranks) / abs(want)

    def of_tensors(name: str) -> float:
        got = whole([part for rank in ranks for part in getattr(rank, name)])
        want = whole(getattr(alone, name))
        assert set(got) == set(want)
        gap = math.fsum(float((got[k] - want[k]).double().square().sum()) for k in want)
        size = math.fsum(float(want[k].double().square().sum()) for k in want)
        return math.sqrt(gap / size)

    return Difference(
        loss=relative("loss"),
        norm=relative("norm"),
        gradient=of_tensors("gradients") if ranks[0].gradients else None,
        weights=of_tensors("weights"),
        loss_after=relative("loss_after"),
    )
