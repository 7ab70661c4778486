"""LoRA on two tensor-parallel processes: the model, the step and the checkpoint of one process.

Each process of a layout does the same work and writes down what it has; the test puts the parts
together and holds them against what one process has.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from torch import Tensor

from data.thd import build_row
from models.cpu import adapt_to_cpu
from models.gpt import KernelPath, build_gpt, transformer_config
from models.hf.adapter import adapter_tensors
from models.lora import attach, branches, merge
from models.lora_settings import LoRASettings
from models.shapes import GPTShape
from sft.optimizers import AdamW
from sft.parallel import parallel_session
from sft.settings import LossAverage
from sft.step import StepRunner
from tests.conftest import make_sample

SHAPE = GPTShape(
    num_layers=2,
    hidden_size=32,
    ffn_hidden_size=48,
    num_attention_heads=4,
    num_query_groups=2,
    context_length=128,
)
SETTINGS = LoRASettings(rank=3, alpha=4.0)
TOLERANCE = 1e-6  # relative, fp32
SEQUENCE = 8  # positions of the sequence-parallel layer

pytestmark = pytest.mark.slow


@contextmanager
def tensor_parallel(rank: int, ranks: int, directory: Path) -> Iterator[None]:
    """A process group of so many processes that meet in a file, as tensor-parallel ranks."""
    adapt_to_cpu()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    store = dist.FileStore(str(directory / f"store{ranks}"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    try:
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
        torch.set_num_threads(threads)


def work(rank: int, ranks: int, directory: Path) -> None:
    """All that is compared, left in ``directory``."""
    with tensor_parallel(rank, ranks, directory):
        found = {**a_step(directory / f"weights{ranks}"), **a_sequence_parallel_layer(ranks)}
    torch.save(found, directory / f"{ranks}.{rank}.pt")


def give_values(model: Any) -> None:
    """Set every B, drawn whole and cut as the parallel layout cuts it."""
    rank = parallel_state.get_tensor_model_parallel_rank()
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    generator = torch.Generator().manual_seed(8)
    for _, branch in branches(model):
        for adapter in branch.adapters.values():
            rows, columns = adapter.B.shape
            whole = torch.empty(rows * ranks if branch.column else rows, columns)
            whole.normal_(std=0.1, generator=generator)
            adapter.B.data.copy_(whole.chunk(ranks)[rank] if branch.column else whole)


def a_step(directory: Path) -> dict[str, Any]:
    """Loss, gradients, their norm, and the adapters after an optimizer step; then merged."""
    torch.manual_seed(3)
    gpt = build_gpt(SHAPE, tokenizer_vocab_size=262, kernels=KernelPath.TORCH, seed=3)
    attach([gpt], SETTINGS, seed=1)
    give_values(gpt)
    gpt.config.finalize_model_grads_func = finalize_model_grads
    model = DistributedDataParallel(gpt.config, DistributedDataParallelConfig(), gpt)
    optimizer = AdamW(lr=0.01).build([model])
    directory.mkdir(exist_ok=True)
    dist_checkpointing.save(gpt.sharded_state_dict(), str(directory))
    runner = StepRunner(
        chunks=[model],
        device=torch.device("cpu"),
        average=LossAverage.TOKEN,
        real_boundaries=True,
    )
    rows = [build_row([make_sample(n, seed=n) for n in lengths]) for lengths in ([20, 9], [33])]
    model.zero_grad_buffer()
    loss = runner.forward_backward(rows)
    gradients = {
        f"{layer}.{name}.{matrix}": getattr(adapter, matrix).main_grad.clone()
        for layer, branch in branches(model)
        for name, adapter in branch.adapters.items()
        for matrix in "AB"
    }
    sharded = {
        key: (tensor.global_shape, tensor.global_offset, tensor.data.detach().clone())
        for key, tensor in gpt.sharded_state_dict().items()
        if ".lora." in key
    }
    _, norm, _ = optimizer.step()
    adapted_loss = runner.forward(rows).value
    adapters = adapter_tensors(model, SHAPE, SETTINGS)
    merge(gpt)
    return {
        "loss": loss.value,
        "norm": norm,
        "gradients": gradients,
        "sharded": sharded,
        "after": adapted_loss,
        "adapters": adapters,
        "merged": runner.forward(rows).value,
    }


def a_sequence_parallel_layer(ranks: int) -> dict[str, Any]:
    """A feed-forward whose input and output are split by position: output and gradients."""
    torch.manual_seed(5)
    config = transformer_config(SHAPE, sequence_parallel=ranks > 1)
    config.perform_initialization = True
    submodules = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    mlp = MLP(config, submodules, tp_group=parallel_state.get_tensor_model_parallel_group())
    no_attention = SimpleNamespace(linear_qkv=None, linear_proj=None)
    layers = [SimpleNamespace(layer_number=1, mlp=mlp, self_attention=no_attention)]
    model = SimpleNamespace(
        config=config, parameters=mlp.parameters, decoder=SimpleNamespace(layers=layers)
    )
    attach([model], LoRASettings(rank=3, targets=["mlp"]), seed=1)
    give_values(model)
    generator = torch.Generator().manual_seed(6)
    x, weigh = (torch.randn(SEQUENCE, 1, 32, generator=generator) for _ in range(2))
    rank = parallel_state.get_tensor_model_parallel_rank()
    mine = x.chunk(ranks)[rank].clone().requires_grad_()
    output, _ = mlp(mine)
    (output * weigh.chunk(ranks)[rank]).sum().backward()
    gradients = {}
    for _, branch in branches(model):
        for name, adapter in branch.adapters.items():
            for matrix, parameter in (("A", adapter.A), ("B", adapter.B)):
                # What finalize_model_grads does with a parameter that is marked so.
                if getattr(parameter, "sequence_parallel", False):
                    dist.all_reduce(
                        parameter.grad, group=parallel_state.get_tensor_model_parallel_group()
                    )
                gradients[f"{name}.{matrix}"] = parameter.grad
    return {
        "sp_output": output.detach(),
        "sp_input_gradient": mine.grad,
        "sp_gradients": gradients,
    }


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes of both layouts have left what they have found."""
    directory = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, 2, directory)) for rank in range(2)]
    for process in processes:
        process.start()
    work(0, 1, directory)
    for process in processes:
        process.join(timeout=240)
    assert [process.exitcode for process in processes] == [0, 0]
    return directory


@pytest.fixture(scope="module")
def found(directory: Path) -> dict[int, list[dict[str, Any]]]:
    """What each process of each layout has found."""
    return {
        ranks: [torch.load(directory / f"{ranks}.{rank}.pt") for rank in range(ranks)]
        for ranks in (1, 2)
    }


def put_together(parts: list[Tensor], whole: Tensor) -> Tensor:
    """The whole of a matrix of which each rank has a part, or all."""
    if parts[0].shape == whole.shape:
        assert all(torch.equal(part, parts[0]) for part in parts), "ranks differ"
        return parts[0]
    (dim,) = (d for d in range(whole.dim()) if parts[0].shape[d] != whole.shape[d])
    return torch.cat(parts, dim)


def assert_same(parts: list[dict[str, Tensor]], want: dict[str, Tensor]) -> None:
    assert all(set(part) == set(want) for part in parts)
    for key, whole in want.items():
        got = put_together([part[key] for part in parts], whole)
        assert whole.norm() > 0
        difference = float((got - whole).norm() / whole.norm())
        assert difference < TOLERANCE, f"{key} differs by {difference:.1e} relative"


@pytest.mark.parametrize("what", ["loss", "norm", "after", "merged"])
def test_losses_and_the_norm_of_the_gradient(
    found: dict[int, list[dict[str, Any]]], what: str
) -> None:
    want = found[1][0][what]
    for part in found[2]:
        assert part[what] == pytest.approx(want, rel=TOLERANCE)


def test_gradients(found: dict[int, list[dict[str, Any]]]) -> None:
    assert len(found[1][0]["gradients"]) == 2 * 2 * 7
    assert_same([part["gradients"] for part in found[2]], found[1][0]["gradients"])


def test_trained_adapters_are_whole_on_every_rank(found: dict[int, list[dict[str, Any]]]) -> None:
    want = found[1][0]["adapters"]
    for part in found[2]:
        assert_same([part["adapters"]], want)


def test_merging_changes_no_loss_under_either_layout(
    found: dict[int, list[dict[str, Any]]],
) -> None:
    for part in (*found[1], *found[2]):
        assert part["merged"] == pytest.approx(part["after"], rel=TOLERANCE)
        assert part["after"] < part["loss"]


def test_checkpoints_are_of_the_whole_matrices(found: dict[int, list[dict[str, Any]]]) -> None:
    wholes = found[1][0]["sharded"]
    assert len(wholes) == 2 * 2 * 7
    for part in found[2]:
        assert set(part["sharded"]) == set(wholes)
        for key, (shape, offset, data) in part["sharded"].items():
            whole_shape, whole_offset, whole = wholes[key]
            assert shape == whole_shape and set(whole_offset) <= {0, whole_offset[0]}
            # A leading axis stands for the layers; the data has none.
            at = offset[len(offset) - data.dim() :]
            cut = tuple(slice(o, o + n) for o, n in zip(at, data.shape, strict=True))
            assert torch.equal(data, whole[cut])
    split = [key for key in wholes if found[2][0]["sharded"][key][2].shape != wholes[key][2].shape]
    assert {key.rpartition(".lora.")[2] for key in split} == {
        "q_proj.B", "k_proj.B", "v_proj.B", "o_proj.A", "gate_proj.B", "up_proj.B", "down_proj.A",
    }  # fmt: skip


def loaded_weights(gpt: Any, checkpoint: Path) -> dict[str, Tensor]:
    """The parameters of a checkpoint; the model's own hold something else before."""
    with torch.no_grad():
        for parameter in gpt.parameters():
            parameter.fill_(0.5)
    gpt.load_state_dict(dist_checkpointing.load(gpt.sharded_state_dict(), str(checkpoint)))
    return {name: parameter.detach().clone() for name, parameter in gpt.named_parameters()}


def test_a_checkpoint_of_two_processes_loads_in_one(
    directory: Path, found: dict[int, list[dict[str, Any]]]
) -> None:
    with parallel_session(seed=9, threads=1):
        gpt = build_gpt(SHAPE, tokenizer_vocab_size=262, kernels=KernelPath.TORCH)
        attach([gpt], SETTINGS, seed=2)
        before = {name: p.detach().clone() for name, p in gpt.named_parameters()}
        one, two = (loaded_weights(gpt, directory / f"weights{ranks}") for ranks in (1, 2))
    norms = {name for name in before if "norm" in name}  # all start as ones
    for name, weight in two.items():
        assert torch.equal(weight, one[name]), name
        assert name in norms or not torch.equal(weight, before[name]), name


def test_sequence_parallel_layers(found: dict[int, list[dict[str, Any]]]) -> None:
    want = found[1][0]
    for key in ("sp_output", "sp_input_gradient"):
        assert_same([{key: part[key]} for part in found[2]], {key: want[key]})
    assert_same([part["sp_gradients"] for part in found[2]], want["sp_gradients"])
