"""Training that goes on from a checkpoint does what it would have done without a break."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

from models import lora
from models.cpu import adapt_to_cpu
from models.gpt import KernelPath, build_gpt
from models.lora_settings import LoRASettings
from models.shapes import GPTShape
from sft.errors import TrainingError
from sft.optimizers import AdamW
from sft.parallel import parallel_session
from sft.schedules import Cosine
from sft.sharded import DamagedCheckpoint, read, write_now
from sft.training_state import load_training_state, save_training_state

SHAPE = GPTShape(
    num_layers=2,
    hidden_size=32,
    ffn_hidden_size=64,
    num_attention_heads=4,
    num_query_groups=2,
    context_length=64,
)
LR = 1e-2
BEFORE, AFTER = range(3), range(3, 6)


@dataclass(frozen=True)
class Layout:
    """How a model is trained."""

    tp: int = 1
    distributed: bool = False
    low_rank: bool = False
    bf16: bool = False


@dataclass(frozen=True)
class Outcome:
    """What the steps after a checkpoint gave."""

    losses: list[float]
    weights: str
    drawn: list[float]


class Training:
    """A small model, trained on windows of random ids; every data-parallel rank has its share."""

    def __init__(self, layout: Layout) -> None:
        gpt = build_gpt(SHAPE, tokenizer_vocab_size=262, kernels=KernelPath.TORCH)
        if layout.low_rank:
            lora.attach([gpt], LoRASettings(rank=2, alpha=4.0, dropout=0.2), seed=1)
        if layout.bf16:
            gpt.bfloat16()
        config = DistributedDataParallelConfig(
            use_distributed_optimizer=layout.distributed, grad_reduce_in_fp32=True
        )
        self.model = DistributedDataParallel(gpt.config, config, gpt)
        if layout.bf16:
            settings = OptimizerConfig(
                optimizer="adam", lr=LR, bf16=True, use_distributed_optimizer=layout.distributed
            )
            self.optimizer = get_megatron_optimizer(settings, [self.model])
        else:
            self.optimizer = AdamW(lr=LR, weight_decay=0.1).build([self.model])
        self.schedule = Cosine().build(self.optimizer, peak_lr=LR, weight_decay=0.1, steps=9)

    def step(self, number: int) -> float:
        ids = torch.randint(0, 262, (4, 17), generator=torch.Generator().manual_seed(number))
        rank = parallel_state.get_data_parallel_rank()
        ranks = parallel_state.get_data_parallel_world_size()
        mine = ids[rank::ranks]
        tokens, labels = mine[:, :-1].contiguous(), mine[:, 1:].contiguous()
        positions = torch.arange(16).expand(tokens.shape).contiguous()
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        loss = self.model(tokens, positions, None, labels=labels).mean() / ranks
        loss.backward()
        self.model.finish_grad_sync()
        self.optimizer.step()
        self.schedule.step(increment=1)
        whole = loss.detach().clone()
        dist.all_reduce(whole, group=parallel_state.get_data_parallel_group())
        return float(whole)

    def go_on(self) -> Outcome:
        drawn = torch.rand(3).tolist()
        losses = [self.step(i) for i in AFTER]
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().float().numpy().tobytes())
        return Outcome(losses, digest.hexdigest(), drawn)

    def save(self, directory: Path) -> None:
        if dist.get_rank() == 0:
            (directory / "weights").mkdir(parents=True)
            (directory / "training").mkdir()
        dist.barrier()
        write_now(self.weights(), directory / "weights")
        save_training_state(directory / "training", [self.model], self.optimizer, self.schedule)

    def load(self, directory: Path) -> None:
        loaded = read(self.weights(), directory / "weights")
        self.model.module.load_state_dict(loaded, strict=False)
        load_training_state(directory / "training", [self.model], self.optimizer, self.schedule)

    def weights(self) -> dict[str, Any]:
        sharded = self.model.module.sharded_state_dict()
        return {k: v for k, v in sharded.items() if not k.endswith("_extra_state")}


def uninterrupted(layout: Layout, directory: Path) -> Outcome:
    torch.manual_seed(7)
    training = Training(layout)
    for i in BEFORE:
        training.step(i)
    training.save(directory)
    return training.go_on()


def resumed(layout: Layout, directory: Path) -> Outcome:
    torch.manual_seed(99)
    training = Training(layout)
    training.load(directory)
    return training.go_on()


def assert_close(got: Outcome, want: Outcome) -> None:
    assert got.losses == pytest.approx(want.losses, rel=1e-6)


@pytest.fixture
def alone() -> Iterator[None]:
    with parallel_session(seed=7, threads=1):
        yield


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout(distributed=True),
        Layout(low_rank=True),
        Layout(bf16=True),
        Layout(bf16=True, distributed=True),
    ],
    ids=str,
)
def test_one_rank_goes_on_bit_for_bit(alone: None, layout: Layout, tmp_path: Path) -> None:
    want = uninterrupted(layout, tmp_path / "saved")
    assert resumed(layout, tmp_path / "saved") == want


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("distributed", [False, True])
def test_the_other_optimizer_keeps_what_it_reads(
    alone: None, distributed: bool, bf16: bool, tmp_path: Path
) -> None:
    # Their steps differ in the last bit: they add up the gradient's norm in another order.
    uninterrupted(Layout(distributed=distributed, bf16=bf16), tmp_path / "one")
    other = Training(Layout(distributed=not distributed, bf16=bf16))
    other.load(tmp_path / "one")
    other.save(tmp_path / "other")
    one, two = (
        dist_checkpointing.load_plain_tensors(str(tmp_path / name / "training"))
        for name in ("one", "other")
    )
    names = {name for name, value in one.items() if isinstance(value, torch.Tensor)}
    states = {"exp_avg", "exp_avg_sq", *(["fp32_param"] if bf16 else [])}
    assert {name.split(".")[1] for name in names} == states
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in names)


def test_the_other_optimizer_goes_on(alone: None, tmp_path: Path) -> None:
    want = uninterrupted(Layout(), tmp_path / "saved")
    assert_close(resumed(Layout(distributed=True), tmp_path / "saved"), want)


def test_a_state_from_before_the_first_step(alone: None, tmp_path: Path) -> None:
    torch.manual_seed(7)
    training = Training(Layout())
    training.save(tmp_path / "saved")
    want = training.go_on()
    assert resumed(Layout(), tmp_path / "saved") == want


def test_the_schedule_stands_where_it_stood(alone: None, tmp_path: Path) -> None:
    uninterrupted(Layout(), tmp_path / "saved")
    training = Training(Layout())
    training.load(tmp_path / "saved")
    fresh = Training(Layout())
    for _ in BEFORE:
        fresh.schedule.step(increment=1)
    rates = [group["lr"] for group in training.optimizer.param_groups]
    assert rates == [group["lr"] for group in fresh.optimizer.param_groups]
    assert training.schedule.num_steps == 1 + len(BEFORE)


def test_only_adapters_have_a_state(alone: None, tmp_path: Path) -> None:
    uninterrupted(Layout(low_rank=True), tmp_path / "saved")
    tensors = dist_checkpointing.load_tensors_metadata(str(tmp_path / "saved" / "training"))
    assert tensors
    assert all("lora" in name for name in tensors), sorted(tensors)


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "metadata.json"])
@pytest.mark.parametrize("harm", ["missing", "empty", "half"])
def test_a_damaged_state_is_named(alone: None, name: str, harm: str, tmp_path: Path) -> None:
    uninterrupted(Layout(), tmp_path / "saved")
    path = tmp_path / "saved" / "training" / name
    content = path.read_bytes()
    path.unlink()
    if harm != "missing":
        path.write_bytes(content[: len(content) // 2] if harm == "half" else b"")
    with pytest.raises(DamagedCheckpoint, match=str(path.parent)):
        Training(Layout()).load(tmp_path / "saved")


def test_the_state_of_another_model_is_not_taken(alone: None, tmp_path: Path) -> None:
    uninterrupted(Layout(low_rank=True), tmp_path / "saved")
    training = Training(Layout())
    with pytest.raises(DamagedCheckpoint, match="training: cannot be read"):
        load_training_state(
            tmp_path / "saved" / "training",
            [training.model],
            training.optimizer,
            training.schedule,
        )


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata.tmp", "metadata.json"])
def test_a_full_disk_is_one_message(alone: None, name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(TrainingError, match=r"cannot be written .*No space left on device"):
        write_now(Training(Layout()).weights(), tmp_path)


# Two ranks. One start of the processes serves all these tests: starting takes the time.

LAYOUTS = {
    "dp2": Layout(),
    "dp2_distributed": Layout(distributed=True),
    "tp2": Layout(tp=2),
}


@contextmanager
def parallel(tp: int) -> Iterator[None]:
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()


def on_two_ranks(root: Path) -> dict[str, Any]:
    """All that the tests below want to know of one rank."""
    found: dict[str, Any] = {}
    for name, layout in LAYOUTS.items():
        with parallel(layout.tp):
            found[name] = uninterrupted(layout, root / name)
            found[name, name] = resumed(layout, root / name)
            found["alone", name] = resumed(layout, root / "alone")
            found["dp2", name] = resumed(layout, root / "dp2")
    with parallel(1):
        training = Training(Layout(distributed=True))
        for i in BEFORE:
            training.step(i)
        training.save(root / "whole")
        found["full"] = _fails_on_rank_1(training, root)
        found["damaged"] = _damaged_on_rank_1(root)
    return found


def _fails_on_rank_1(training: Training, root: Path) -> str:
    directory = root / "full"
    if dist.get_rank() == 0:
        directory.mkdir()
        (directory / "__1_0.distcp").symlink_to("/dev/full")
    dist.barrier()
    with pytest.raises(TrainingError) as caught:
        save_training_state(directory, [training.model], training.optimizer, training.schedule)
    return str(caught.value)


def _damaged_on_rank_1(root: Path) -> str:
    (root / "whole" / "training" / "__1_0.distcp").write_bytes(b"")
    dist.barrier()
    with pytest.raises(DamagedCheckpoint) as caught:
        Training(Layout(distributed=True)).load(root / "whole")
    return str(caught.value)


def _one_of_two(rank: int, root: Path, answers: Any) -> None:
    adapt_to_cpu()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(root / "store"), 2), rank=rank, world_size=2
    )
    try:
        answers.put((rank, on_two_ranks(root)))
    except BaseException as error:
        answers.put((rank, error))
        raise
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Ran:
    """What two ranks found, and what one rank had found in the same directory."""

    root: Path
    alone: Outcome
    ranks: list[dict[str, Any]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    root = tmp_path_factory.mktemp("two_ranks")
    with parallel_session(seed=7, threads=1):
        by_one = uninterrupted(Layout(), root / "alone")
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=_one_of_two, args=(r, root, answers)) for r in (0, 1)]
    for process in processes:
        process.start()
    try:
        found = dict(answers.get(timeout=300) for _ in processes)
        for rank, answer in found.items():
            assert isinstance(answer, dict), f"rank {rank}: {answer!r}"
        return Ran(root, by_one, [found[0], found[1]])
    finally:
        for process in processes:
            process.join(timeout=10)
            process.kill()


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_ranks_go_on_bit_for_bit(ran: Ran, name: str) -> None:
    for found in ran.ranks:
        assert found[name, name] == found[name]


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_ranks_go_on_from_one(ran: Ran, name: str) -> None:
    for found in ran.ranks:
        assert_close(found["alone", name], ran.alone)


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_ranks_go_on_from_another_layout(ran: Ran, name: str) -> None:
    for found in ran.ranks:
        assert_close(found["dp2", name], found["dp2"])


@pytest.mark.parametrize("layout", [Layout(), Layout(distributed=True)], ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_one_rank_goes_on_from_two(ran: Ran, alone: None, name: str, layout: Layout) -> None:
    got = resumed(layout, ran.root / name)
    assert_close(got, ran.ranks[0][name])
    # Random numbers go on only under the layout they were drawn in.
    assert got.drawn != ran.ranks[0][name].drawn


def test_ranks_that_share_a_state_share_the_writing(ran: Ran) -> None:
    saved = ran.root / "dp2_distributed" / "training"
    first, second = (sum(p.stat().st_size for p in saved.glob(f"__{r}_*")) for r in (0, 1))
    assert 0.5 < first / second < 2


def test_what_one_rank_meets_all_are_told(ran: Ran) -> None:
    for found in ran.ranks:
        assert "No space left on device, says rank 1" in found["full"]
        assert str(ran.root / "whole" / "training") in found["damaged"]
