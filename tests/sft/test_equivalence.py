"""Packing changes speed and not what is learned: packed = padded = alone, loss and gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from data.packers import load_packer, packer_names
from data.packing.batch import Pack, StepBatch
from data.packing.microbatches import Layout, Microbatch, to_microbatches
from data.packing.settings import PackingMode
from data.sample import Sample
from data.thd import Row, build_row
from models.gpt import KernelPath, build_gpt
from models.losses import packed_seq_params, token_losses
from models.shapes import GPTShape
from sft.loss import loss_weights
from sft.parallel import parallel_session
from sft.settings import LossAverage
from sft.step import StepRunner
from tests.conftest import make_sample

CAPACITY = 512
TOLERANCE = 1e-6  # relative, fp32


@dataclass(frozen=True)
class Model:
    """A small model, its runner, and what a step makes of it."""

    runner: StepRunner

    def step(
        self,
        microbatches: Sequence[Microbatch],
        average: LossAverage = LossAverage.TOKEN,
        real: bool = True,
    ) -> tuple[float, Tensor]:
        """Loss and the whole gradient of one step, as the optimizer would get it."""
        runner = StepRunner(
            chunks=self.runner.chunks,
            device=self.runner.device,
            average=average,
            real_boundaries=real,
        )
        (model,) = runner.chunks
        model.zero_grad_buffer()
        loss = runner.forward_backward(microbatches)
        grads = [p.main_grad.flatten() for p in model.parameters()]
        return loss.value, torch.cat(grads).clone()


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )

    shape = GPTShape(
        num_layers=2,
        hidden_size=64,
        ffn_hidden_size=160,
        num_attention_heads=4,
        num_query_groups=2,
        context_length=CAPACITY,
    )
    with parallel_session(seed=7, threads=None) as device:
        gpt = build_gpt(shape, tokenizer_vocab_size=262, kernels=KernelPath.TORCH, seed=7)
        gpt.config.finalize_model_grads_func = finalize_model_grads
        wrapped = DistributedDataParallel(gpt.config, DistributedDataParallelConfig(), gpt)
        yield Model(
            StepRunner(
                chunks=[wrapped], device=device, average=LossAverage.TOKEN, real_boundaries=True
            )
        )


def layout(mode: PackingMode, packer: str = "mffd", multiple: int = 1, size: int = 4) -> Layout:
    return Layout(
        mode=mode,
        packer=load_packer(packer),
        capacity=CAPACITY,
        pad_multiple=multiple,
        pad_id=256,
        micro_batch_size=size,
    )


def loader_batch(samples: Sequence[Sample], how: Layout) -> StepBatch:
    bins = how.bins([len(s) for s in samples])
    return StepBatch.from_packs([Pack.of(how.loader_row([samples[i] for i in b])) for b in bins])


def alone(samples: Sequence[Sample]) -> list[Microbatch]:
    return [build_row([s]) for s in samples]


def assert_same(got: tuple[float, Tensor], want: tuple[float, Tensor]) -> None:
    assert math.isclose(got[0], want[0], rel_tol=TOLERANCE)
    difference = (got[1] - want[1]).norm() / want[1].norm()
    assert difference < TOLERANCE, f"gradients differ by {difference:.1e} relative"


@pytest.fixture(scope="module")
def reference(model: Model, real_samples: list[Sample]) -> tuple[float, Tensor]:
    """Every conversation its own microbatch."""
    return model.step(alone(real_samples))


@pytest.mark.parametrize("packer", packer_names())
@pytest.mark.parametrize("real", [True, False], ids=["real", "padded"])
@pytest.mark.parametrize("mode", [PackingMode.TRAINER, PackingMode.LOADER])
def test_packed_equals_alone(
    model: Model,
    real_samples: list[Sample],
    reference: tuple[float, Tensor],
    mode: PackingMode,
    packer: str,
    real: bool,
) -> None:
    how = layout(mode, packer, multiple=8)
    if mode is PackingMode.LOADER:
        batch = loader_batch(real_samples, how)
    else:
        batch = StepBatch(samples=tuple(real_samples))
    microbatches = to_microbatches(batch, how)
    assert len(microbatches) < len(real_samples)
    assert_same(model.step(microbatches, real=real), reference)


@pytest.mark.parametrize("size", [1, 5, 64])
def test_padded_equals_alone(
    model: Model, real_samples: list[Sample], reference: tuple[float, Tensor], size: int
) -> None:
    microbatches = to_microbatches(
        StepBatch(samples=tuple(real_samples)), layout(PackingMode.NONE, size=size)
    )
    assert len(microbatches) == -(-64 // size)
    assert_same(model.step(microbatches), reference)


@pytest.mark.parametrize("mode", list(PackingMode))
def test_sample_average_does_not_depend_on_packing(
    model: Model, real_samples: list[Sample], mode: PackingMode
) -> None:
    want = model.step(alone(real_samples), LossAverage.SAMPLE)
    how = layout(mode, "ffd", multiple=4)
    loader = mode is PackingMode.LOADER
    batch = loader_batch(real_samples, how) if loader else StepBatch(samples=tuple(real_samples))
    got = model.step(to_microbatches(batch, how), LossAverage.SAMPLE)
    assert_same(got, want)
    # The two averages are two choices: equal numbers would mean that one is not implemented.
    assert not math.isclose(want[0], model.step(alone(real_samples))[0], rel_tol=1e-4)


def test_sample_average_weighs_conversations_equally() -> None:
    short = Sample(tokens=[1, 2], targets=[False, True], source_id="short")
    long = Sample(tokens=range(10), targets=[False] + [True] * 9, source_id="long")
    weights = loss_weights(build_row([short, long], pad_multiple=4), LossAverage.SAMPLE)
    assert weights.positions.tolist() == [0, *range(4, 13)]
    assert weights.weights is not None
    assert torch.allclose(weights.weights, torch.tensor([1.0] + [1 / 9] * 9))
    assert weights.denominator == 2


def losses_by_sample(model: Model, row: Row) -> dict[str, Tensor]:
    """Per-token losses of each conversation in a row."""
    positions = loss_weights(row, LossAverage.TOKEN).positions
    with torch.no_grad():
        losses = token_losses(
            model.runner.chunks[0],
            tokens=row.tokens,
            labels=row.labels,
            position_ids=row.position_ids,
            loss_positions=positions,
            packing=packed_seq_params(
                row.cu_seqlens, row.cu_seqlens_padded, row.max_seqlen, real_boundaries=True
            ),
        )
    ends = row.cu_seqlens_padded[1:].long()
    owner = torch.searchsorted(ends, positions, right=True)
    return {name: losses[owner == i] for i, name in enumerate(row.source_ids)}


@pytest.mark.parametrize("multiple", [1, 8])
def test_changing_one_conversation_changes_no_other(model: Model, multiple: int) -> None:
    samples = [make_sample(n, seed=3) for n in (40, 17, 90, 5)]
    before = losses_by_sample(model, build_row(samples, pad_multiple=multiple))
    for i, changed in enumerate(samples):
        other = Sample(
            tokens=(changed.tokens + 7) % 256, targets=changed.targets, source_id="changed"
        )
        row = build_row([*samples[:i], other, *samples[i + 1 :]], pad_multiple=multiple)
        after = losses_by_sample(model, row)
        for name, losses in before.items():
            if name == changed.source_id:
                assert (after["changed"] - losses).abs().max() > 1e-3
            else:
                assert (after[name] - losses).abs().max() < TOLERANCE


def test_order_inside_a_row_does_not_matter(model: Model) -> None:
    samples = [make_sample(n, seed=4) for n in (3, 5, 60)]
    forward = losses_by_sample(model, build_row(samples, pad_multiple=8))
    backward = losses_by_sample(model, build_row(samples[::-1], pad_multiple=8))
    for name, losses in forward.items():
        assert torch.allclose(losses, backward[name], rtol=0, atol=TOLERANCE)


def test_a_microbatch_without_loss_tokens_adds_nothing(model: Model) -> None:
    silent = Sample(tokens=np.arange(9), targets=np.zeros(9), source_id="silent")
    spoken = make_sample(30)
    want = model.step(alone([spoken]))
    assert_same(model.step(alone([silent, spoken])), want)
    loss, gradient = model.step(alone([silent]))
    assert loss == 0.0
    assert gradient.abs().max() == 0.0


def test_extra_pad_tokens_change_nothing(model: Model) -> None:
    samples = [make_sample(n, seed=5) for n in (33, 21)]
    want = model.step([build_row(samples)])
    for pad_id in (0, 256):
        assert_same(model.step([build_row(samples, width=CAPACITY, pad_id=pad_id)]), want)


def test_a_step_in_any_number_of_microbatches(model: Model) -> None:
    # Case D1: microbatches of very unequal token counts; the step's mean is over tokens.
    samples = [make_sample(n, seed=6) for n in (200, 8, 8, 120, 4, 300)]
    want = model.step([build_row(samples[:3]), build_row(samples[3:])])
    assert_same(model.step(alone(samples)), want)
    assert_same(model.step([build_row(samples[:5]), build_row(samples[5:])]), want)
