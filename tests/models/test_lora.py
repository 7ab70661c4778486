"""LoRA on a model: what it computes, what it trains, and what is left when it is merged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core import parallel_state
from torch import Tensor
from torch.func import functional_call

from models.gpt import KernelPath, build_gpt
from models.lora import attach, branches, merge
from models.lora_layers import AdaptedLinear, Adapter, FusedRows, LowRankBranch, adapt, merge_branch
from models.lora_settings import LoRASettings
from models.shapes import GPTShape
from sft.parallel import parallel_session

SHAPE = GPTShape(
    num_layers=2,
    hidden_size=48,
    ffn_hidden_size=80,
    num_attention_heads=6,
    num_query_groups=2,
    context_length=64,
    qkv_bias=True,
)
VOCAB = 262
RANK, ALPHA = 3, 5.0
TARGETS = [["all"], ["q_proj"], ["k_proj", "up_proj"], ["v_proj", "o_proj"], ["mlp"]]


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with parallel_session(seed=3, threads=None):
        yield


def base_model() -> Any:
    return build_gpt(SHAPE, tokenizer_vocab_size=VOCAB, kernels=KernelPath.TORCH, seed=3)


def adapted_model(*, targets: list[str] | None = None, dropout: float = 0.0) -> Any:
    """A model whose adapters change what it computes: no B is 0."""
    model = base_model()
    attach([model], LoRASettings(rank=RANK, alpha=ALPHA, targets=targets, dropout=dropout), seed=1)
    generator = torch.Generator().manual_seed(8)
    for _, branch in branches(model):
        for adapter in branch.adapters.values():
            torch.nn.init.normal_(adapter.B.data, std=0.1, generator=generator)
    return model


def logits(model: Any, weights: dict[str, Tensor] | None = None) -> Tensor:
    """``[2, 12, vocabulary]``, in evaluation unless the model trains."""
    tokens = torch.randint(0, VOCAB, (2, 12), generator=torch.Generator().manual_seed(4))
    positions = torch.arange(12).expand(2, 12)
    arguments = (tokens, positions, None)
    if weights is None:
        return model(*arguments)  # type: ignore[no-any-return]
    return functional_call(model, weights, arguments)  # type: ignore[no-any-return]


def rows_of(name: str) -> list[int]:
    """Rows of a matrix in the weight that Megatron-Core keeps it in, by hand.

    6 query heads of 8 channels, 3 to a key head: rows 0-23 are the query heads of group 0, 24-31
    its key head, 32-39 its value head; then group 1 from row 40.
    """
    if name in ("q_proj", "k_proj", "v_proj"):
        first, count = {"q_proj": (0, 24), "k_proj": (24, 8), "v_proj": (32, 8)}[name]
        return [40 * group + first + i for group in range(2) for i in range(count)]
    first, count = {
        "o_proj": (0, 48), "gate_proj": (0, 80), "up_proj": (80, 80), "down_proj": (0, 48),
    }[name]  # fmt: skip
    return list(range(first, first + count))


LINEAR_OF = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "self_attention.linear_qkv"),
    "o_proj": "self_attention.linear_proj",
    **dict.fromkeys(("gate_proj", "up_proj"), "mlp.linear_fc1"),
    "down_proj": "mlp.linear_fc2",
}


def dense(model: Any, adapters: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """The weights ``W + scale * B A``, written out, as functions of the adapters."""
    weights: dict[str, Tensor] = {}
    parameters = dict(model.named_parameters())
    for key, (a, b) in adapters.items():
        layer, name = key.split(".")
        weight = f"decoder.layers.{layer}.{LINEAR_OF[name]}.weight"
        have = weights.get(weight, parameters[weight].detach())
        rows = torch.tensor(rows_of(name))
        weights[weight] = have.index_add(0, rows, ALPHA / RANK * b @ a)
    return weights


def leaves(model: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Copies of the adapters to differentiate by, by layer and matrix."""
    return {
        f"{layer}.{name}": (
            adapter.A.detach().clone().requires_grad_(),
            adapter.B.detach().clone().requires_grad_(),
        )
        for layer, branch in branches(model)
        for name, adapter in branch.adapters.items()
    }


def test_fresh_adapters_change_nothing() -> None:
    before = logits(base_model())
    model = base_model()
    attach([model], LoRASettings(rank=RANK), seed=1)
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("targets", TARGETS, ids=",".join)
def test_output_and_gradients_are_those_of_the_dense_product(targets: list[str]) -> None:
    model = adapted_model(targets=targets)
    copies = leaves(model)
    base = base_model()
    got, want = logits(model), logits(base, dense(base, copies))
    # It is another function than the base model's, or this shows nothing.
    assert (want - logits(base)).abs().max() > 1e-3
    assert torch.allclose(got, want, rtol=0, atol=1e-5)
    weigh = torch.randn(got.shape, generator=torch.Generator().manual_seed(5))
    (got * weigh).sum().backward()
    (want * weigh).sum().backward()
    compared = 0
    for layer, branch in branches(model):
        for name, adapter in branch.adapters.items():
            a, b = copies[f"{layer}.{name}"]
            for mine, plain in ((adapter.A, a), (adapter.B, b)):
                assert mine.grad is not None and plain.grad is not None and plain.grad.norm() > 0
                assert (mine.grad - plain.grad).norm() < 1e-5 * plain.grad.norm()
                compared += 1
    assert compared == 2 * SHAPE.num_layers * len(LoRASettings(rank=1, targets=targets).matrices)


@pytest.mark.parametrize("targets", TARGETS, ids=",".join)
def test_only_adapters_are_trained(targets: list[str]) -> None:
    settings = LoRASettings(rank=RANK, targets=targets)
    model = base_model()
    attach([model], settings, seed=1)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert sum(p.numel() for p in trained.values()) == settings.parameter_count(SHAPE)
    assert all(".lora." in name for name in trained)
    logits(model).sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == set(trained)


@pytest.mark.parametrize("targets", TARGETS, ids=",".join)
def test_merged_equals_adapted(targets: list[str]) -> None:
    model = adapted_model(targets=targets)
    before = logits(model)
    names = set(base_model().state_dict())
    merge(model)
    assert torch.allclose(logits(model), before, rtol=0, atol=1e-5)
    assert set(model.state_dict()) == names
    assert not any(isinstance(module, AdaptedLinear) for module in model.modules())
    assert {type(m) for m in model.modules()} == {type(m) for m in base_model().modules()}


def test_merging_rounds_once() -> None:
    # In bfloat16 W + scale * B A is one rounding of the sum, not a sum of rounded parts.
    linear = torch.nn.Linear(8, 6, bias=False, dtype=torch.bfloat16)
    a, b = torch.randn(2, 8).bfloat16(), torch.randn(6, 2).bfloat16()
    want = (linear.weight.float() + 0.3 * b.float() @ a.float()).bfloat16()
    adapt(linear, branch_of(a, b, scale=0.3))
    merge_branch(linear)  # type: ignore[arg-type]
    assert torch.equal(linear.weight, want)


def branch_of(a: Tensor, b: Tensor, *, scale: float) -> LowRankBranch:
    return LowRankBranch(
        {"o_proj": Adapter(a, b)},
        rows=FusedRows(1, {"o_proj": b.shape[0]}),
        scale=scale,
        dropout=0.0,
        column=True,
        sequence_parallel=False,
        tp_group=parallel_state.get_tensor_model_parallel_group(),
    )


class NormLinear(torch.nn.Module):
    """Answers as Transformer Engine's layer with a norm in it does, with and without a bias."""

    def __init__(self, *, return_bias: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 8))
        self.bias = torch.nn.Parameter(torch.randn(6))
        self.return_bias = return_bias
        self.return_layernorm_output = False

    def forward(self, x: Tensor) -> Any:
        normed = torch.nn.functional.rms_norm(x, (8,))
        output = normed @ self.weight.t()
        if self.return_bias:
            more = (normed,) if self.return_layernorm_output else ()
            return output, self.bias, *more
        return ((output, normed) if self.return_layernorm_output else output), None


@pytest.mark.parametrize("return_bias", [False, True])
def test_a_norm_inside_the_layer_comes_before_the_adapter(return_bias: bool) -> None:
    layer = NormLinear(return_bias=return_bias)
    x, a, b = torch.randn(3, 2, 8), torch.randn(2, 8), torch.randn(6, 2)
    normed = torch.nn.functional.rms_norm(x, (8,))
    want = normed @ layer.weight.t() + 0.5 * normed @ a.t() @ b.t()
    adapt(layer, branch_of(a, b, scale=0.5))
    output, bias = layer(x)
    assert torch.allclose(output, want, atol=1e-5)
    assert bias is (layer.bias if return_bias else None)
    merge_branch(layer)  # type: ignore[arg-type]
    assert torch.allclose(layer(x)[0], want, atol=1e-5)
    assert type(layer) is NormLinear and layer.return_layernorm_output is False


def test_dropout_is_of_training_only() -> None:
    plain, dropped = adapted_model(), adapted_model(dropout=0.5)
    want = logits(plain.eval())
    assert torch.equal(logits(dropped.eval()), want)
    dropped.train()
    first, second = logits(dropped), logits(dropped)
    assert not torch.equal(first, want) and not torch.equal(first, second)


def test_dropout_keeps_the_expectation() -> None:
    torch.manual_seed(0)
    x, a, b = torch.randn(1, 1, 8), torch.randn(2, 8), torch.randn(6, 2)
    branch = branch_of(a, b, scale=1.0)
    branch.dropout = 0.25
    nothing = torch.zeros(4000, 1, 6)
    mean = branch.train()(x.expand(4000, 1, 8), nothing).mean(0)
    want = x[0] @ a.t() @ b.t()
    # Each of the 8 terms varies by term^2 / 3; the mean of 4000 draws by a 4000th of their sum.
    terms = (b @ a) * x[0, 0]
    sigma = (terms.square().sum(1) / 3 / 4000).sqrt()
    assert ((mean[0] - want[0]).abs() < 5 * sigma).all()


def adapters_by_name(model: Any) -> dict[str, Tensor]:
    return {
        f"{layer}.{name}": adapter.A.detach()
        for layer, branch in branches(model)
        for name, adapter in branch.adapters.items()
    }


def test_what_A_starts_as() -> None:
    def fresh(seed: int, targets: list[str] | None = None) -> dict[str, Tensor]:
        model = base_model()
        attach([model], LoRASettings(rank=16, targets=targets), seed=seed)
        return adapters_by_name(model)

    first = fresh(1)
    assert all(torch.equal(a, first[key]) for key, a in fresh(1, ["k_proj", "mlp"]).items())
    assert not any(torch.equal(a, first[key]) for key, a in fresh(2).items())
    same_shape = [first[f"{layer}.{name}"] for layer in (0, 1) for name in ("q_proj", "k_proj")]
    assert len({a.numpy().tobytes() for a in same_shape}) == 4
    for a in first.values():
        # Evenly spread up to 1 / sqrt(inputs), which is what kaiming_uniform_(a=sqrt(5)) does.
        bound = 1 / math.sqrt(a.shape[1])
        assert a.abs().max() <= bound
        assert math.isclose(a.std(), bound / math.sqrt(3), rel_tol=0.1)


def test_the_generators_of_the_run_are_left_alone() -> None:
    model = base_model()
    before = torch.get_rng_state()
    attach([model], LoRASettings(rank=RANK), seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_tied_embeddings_are_frozen_once() -> None:
    from dataclasses import replace

    shape = replace(SHAPE, tie_embeddings=True)
    model = build_gpt(shape, tokenizer_vocab_size=VOCAB, kernels=KernelPath.TORCH)
    attach([model], LoRASettings(rank=RANK), seed=1)
    assert not model.shared_embedding_or_output_weight().requires_grad
    logits(model).sum().backward()
    assert model.embedding.word_embeddings.weight.grad is None


def test_a_layout_that_cuts_a_key_head_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_state, "get_tensor_model_parallel_world_size", lambda: 4)
    model = SimpleNamespace(config=SimpleNamespace(num_query_groups=2))
    with pytest.raises(ValueError) as caught:
        attach([model], LoRASettings(rank=3))
    assert str(caught.value) == (
        "rank=3: LoRA needs whole key and value heads on every tensor-parallel rank, and 2 cannot "
        "be shared out over 4; use a number of ranks that divides it, or lora=none"
    )
