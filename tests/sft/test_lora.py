"""LoRA in training: what is trained, what is left alone, and that packing does not matter."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from data.packing.microbatches import Microbatch
from data.thd import build_rectangle, build_row
from models.gpt import KernelPath
from models.lora import branches
from sft.build import Trainee, build_trainee
from sft.config import RunConfig
from sft.flops import TrainingFlops
from sft.parallel import parallel_session
from sft.settings import LossAverage
from sft.step import StepRunner
from tests.conftest import make_sample, read_metrics
from tests.sft.test_config import changed, composed, refusal, settle

SMALL = (
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.ffn_hidden_size=64",
    "model.num_attention_heads=2",
    "model.num_query_groups=1",
)


def test_the_group() -> None:
    from sft.config import resolve

    assert resolve(composed()).lora.rank is None
    lora = resolve(composed("lora=default")).lora
    assert (lora.rank, lora.scale, lora.dropout, len(lora.matrices)) == (16, 2.0, 0.0, 7)
    some = resolve(composed("lora=default", "lora.rank=4", "lora.targets=[attention]")).lora
    assert (some.rank, some.matrices) == (4, ("q_proj", "k_proj", "v_proj", "o_proj"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["lora.rank=0"], "lora.rank=0: must be at least 1, or null for no LoRA"),
        (["lora.rank=x"], "lora.rank=x: must be a whole number or null"),
        (["lora.alpha=8"], "lora.alpha=8.0: does nothing without LoRA, and lora.rank is null; set "
         "lora.rank, as lora=default does, or remove it"),
        (["lora.rank=4", "lora.targets=attention"],
         "lora.targets=attention: must be a list such as [a, b] or null"),
        (["lora.rank=4", "lora.targets=[wq]"], "lora.targets=[wq]: there is no wq. Use q_proj, "
         "k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, attention, mlp, all"),
    ],
)  # fmt: skip
def test_refused(settings: list[str], message: str) -> None:
    assert refusal(changed(*settings)) == message


def test_a_key_that_is_not_there() -> None:
    assert refusal(composed("+lora.r=4")) == (
        "lora.r=4: there is no such key. Keys in lora: alpha, dropout, rank, targets"
    )


def test_adapters_on_random_weights_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        settle()
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        settle("lora.rank=4")
    assert [record.getMessage() for record in caplog.records] == [
        "lora.rank=4: model.init_from is null, so random weights are frozen and only adapters to "
        "them are trained; set model.init_from, or lora=none to train every weight"
    ]


# --- steps


def config_of(*settings: str) -> tuple[RunConfig, int]:
    config, derived = settle(*SMALL, "optimizer.lr=0.01", "schedule.warmup_fraction=0", *settings)
    return config, derived.tokenizer.vocab_size


@pytest.fixture
def trainee() -> Iterator[Trainee]:
    config, vocab_size = config_of("lora.rank=4")
    with parallel_session(seed=7, threads=None):
        yield build_trainee(
            config, tokenizer_vocab_size=vocab_size, kernels=KernelPath.TORCH, steps=20
        )


def runner_of(trainee: Trainee) -> StepRunner:
    return StepRunner(
        chunks=trainee.chunks,
        device=torch.device("cpu"),
        average=LossAverage.TOKEN,
        real_boundaries=True,
    )


def backward(trainee: Trainee, microbatches: Sequence[Microbatch]) -> tuple[float, Tensor]:
    """The loss of a step, and its gradient by every adapter as the optimizer would get it."""
    trainee.chunks[0].zero_grad_buffer()
    trainee.optimizer.zero_grad()
    loss = runner_of(trainee).forward_backward(microbatches)
    grads = [
        getattr(adapter, matrix).main_grad.flatten()
        for _, branch in branches(trainee.chunks[0])
        for adapter in branch.adapters.values()
        for matrix in "AB"
    ]
    return loss.value, torch.cat(grads)


def step(trainee: Trainee, microbatches: Sequence[Microbatch]) -> tuple[float, float]:
    """One optimizer step; its loss and the norm of its gradient."""
    loss, _ = backward(trainee, microbatches)
    _, norm, _ = trainee.optimizer.step()
    trainee.scheduler.step(increment=1)
    return loss, norm


def test_training_changes_the_adapters_alone(trainee: Trainee) -> None:
    rows = [build_row([make_sample(n, seed=n) for n in (40, 25)])]
    parameters = dict(trainee.chunks[0].named_parameters())
    before = {name: p.detach().clone() for name, p in parameters.items()}
    losses = [step(trainee, rows)[0] for _ in range(20)]
    assert losses[-1] < losses[0] - 0.1
    for name, parameter in parameters.items():
        assert torch.equal(parameter, before[name]) == (".lora." not in name), name


def test_the_optimizer_holds_adapters_alone(trainee: Trainee) -> None:
    step(trainee, [build_row([make_sample(30)])])
    adapters = {id(p) for n, p in trainee.chunks[0].named_parameters() if ".lora." in n}
    held = [p for group in trainee.optimizer.param_groups for p in group["params"]]
    # In fp32 the optimizer steps the model's own parameters.
    assert {id(p) for p in held} == adapters and len(held) == len(adapters) == 2 * 2 * 7
    states = trainee.optimizer.optimizer.state
    moments = sum(s[m].numel() for s in states.values() for m in ("exp_avg", "exp_avg_sq"))
    assert moments == 2 * trainee.parameters
    assert (
        sum(b.grad_data.numel() for b in trainee.chunks[0].buffers) < 1.1 * trainee.parameters + 64
    )


def test_the_norm_is_that_of_the_adapters_gradients(trainee: Trainee) -> None:
    rows = [build_row([make_sample(30)])]
    step(trainee, rows)
    _, gradient = backward(trainee, rows)
    _, norm = step(trainee, rows)
    assert norm == pytest.approx(float(gradient.norm()), rel=1e-5)


def test_counts(trainee: Trainee) -> None:
    config, vocab_size = config_of("lora.rank=4")
    assert trainee.parameters == config.lora.parameter_count(config.model)
    assert trainee.frozen_parameters == config.model.parameter_count(vocab_size)


def test_packed_equals_padded_equals_alone(trainee: Trainee) -> None:
    samples = [make_sample(n, seed=3) for n in (40, 17, 64, 5)]
    step(trainee, [build_row(samples)])  # so that no B is 0
    want_loss, want = backward(trainee, [build_row([s]) for s in samples])
    for microbatches in (
        [build_row(samples, pad_multiple=8)],
        [build_row(samples[:2]), build_row(samples[2:], width=128)],
        [build_rectangle(samples, pad_multiple=1, pad_id=0)],
    ):
        loss, got = backward(trainee, microbatches)
        assert math.isclose(loss, want_loss, rel_tol=1e-6)
        assert (got - want).norm() < 1e-6 * want.norm()


def test_a_microbatch_without_loss_tokens_adds_nothing(trainee: Trainee) -> None:
    silent = make_sample(9)
    silent.targets[:] = False
    loss, gradient = backward(trainee, [build_row([silent])])
    assert loss == 0.0 and gradient.abs().max() == 0.0


# --- a run


def test_a_run(run_app: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("train.steps=12", "train.global_batch_tokens=2048", "packing.capacity=512",
                "data.limit=400")  # fmt: skip
    done = run_app("lora=default", "lora.rank=4", "optimizer.lr=0.01", *settings)
    steps, (first, last) = read_metrics(done.run_dir), read_metrics(done.run_dir, "val")
    assert last["val_loss"] < first["val_loss"] - 0.05
    config, vocab_size = config_of("lora.rank=4")
    flops = TrainingFlops.of(config.model, vocab_size, config.lora)
    for record in steps:
        assert record["model_flops"] == flops.count(
            tokens=record["real_tokens"],
            squared_lengths=record["squared_length_sum"],
            loss_tokens=record["loss_tokens"],
        )
    trained, frozen = (
        config.lora.parameter_count(config.model),
        config.model.parameter_count(vocab_size),
    )
    told = " ".join(capsys.readouterr().out.split())
    assert f"model {trained + frozen:,} parameters" in told
    assert (
        f"lora {trained:,} parameters trained, {trained / (trained + frozen):.2%} of all: rank 4, "
        "alpha 8, on q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj" in told
    )


def test_a_run_without_lora_says_nothing_of_it(
    run_app: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_app(
        "train.steps=1", "packing.capacity=512", "train.global_batch_tokens=512", "data.limit=50"
    )
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("model ") for line in lines)
    assert not any(line.startswith("lora ") for line in lines)
