"""Whole runs, in process: what they leave, what adds up, and what stops them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.errors import DataError
from sft.errors import ConfigError, TrainingError
from tests.conftest import read_metrics

RunApp = Callable[..., Any]
WriteChats = Callable[..., Path]

SMALL = ("packing.capacity=256", "train.global_batch_tokens=1024")


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def test_a_run_learns_and_leaves_its_record(run_app: RunApp) -> None:
    result = run_app(*SMALL, "train.steps=12", "train.eval_every=4", "data.limit=300")
    steps = read_metrics(result.run_dir)
    assert [m["step"] for m in steps] == list(range(1, 13))
    vals = read_metrics(result.run_dir, "val")
    assert [m["step"] for m in vals] == [0, 4, 8, 12]
    # 262 ids: an untrained model is about as good as a guess.
    assert math.isclose(vals[0]["val_loss"], math.log(262), rel_tol=0.05)
    assert vals[-1]["val_loss"] < vals[0]["val_loss"] - 0.3
    assert result.final_val_loss == vals[-1]["val_loss"]
    assert all(m["slot_tokens"] == 1024 and m["microbatches"] == 4 for m in steps)
    summary = load(result.run_dir / "summary.json")
    assert summary["real_tokens"] == sum(m["real_tokens"] for m in steps)
    assert summary["timed_steps"] == 10
    assert math.isclose(sum(summary["step_time_shares"].values()), 1.0)
    assert summary["rows"] >= summary["fewest_rows"] > 0
    run = load(result.run_dir / "run.json")
    assert run["config"]["packer"]["_target_"] == "data.packers.mffd.ModifiedFirstFitDecreasing"
    assert run["config"]["packing"]["mode"] == "loader"
    assert run["kernels"].startswith("torch")
    assert run["versions"]["megatron-core"]


def test_rates_are_what_they_are_defined_as(run_app: RunApp) -> None:
    result = run_app(*SMALL, "train.steps=3", "data.limit=300", "train.speed_skip_steps=1")
    steps = read_metrics(result.run_dir)
    for m in steps:
        for kind in ("slot", "real", "loss"):
            expected = m[f"{kind}_tokens"] / m["step_seconds"]
            assert math.isclose(m[f"{kind}_tokens_per_s"], expected)
        phases = ("data_wait", "packing", "forward_backward", "optimizer")
        assert math.isclose(m["step_seconds"], sum(m[f"{p}_seconds"] for p in phases))
    timed = steps[1:]
    seconds = sum(m["step_seconds"] for m in timed)
    tokens = sum(m["real_tokens"] for m in timed)
    assert math.isclose(result.summary["real_tokens_per_s"], tokens / seconds)


def test_accounting_adds_up(run_app: RunApp, write_chats: WriteChats) -> None:
    bad = ["{broken", '{"messages": null}', '{"messages": [{"role": "user", "content": "hi"}]}']
    path = write_chats([10, 20, 400, 30, 40, 500, 5], extra=bad)
    result = run_app(
        "data=jsonl", f"data.path={path}", "data.val_fraction=0", "data.overlong=drop",
        "packing.capacity=128", "train.global_batch_tokens=128", "train.steps=null",
        "train.epochs=2",
    )  # fmt: skip
    train = load(result.run_dir / "samples.json")["train"]
    assert train["read"] == 2 * 10
    assert train["kept"] == train["trained"] == 2 * 5
    assert train["not_trained"] == 0
    assert train["dropped"] == {
        "over the capacity": 4,
        "invalid JSON": 2,
        "messages is null": 2,
        "no assistant turn": 2,
    }
    assert train["read"] == train["kept"] + sum(train["dropped"].values())
    assert set(train["examples"]["invalid JSON"]) == {"chats.jsonl:8"}
    assert set(train["examples"]["over the capacity"]) == {"chats.jsonl:3", "chats.jsonl:6"}


@pytest.mark.parametrize("mode", ["none", "trainer", "loader"])
def test_truncation_is_counted(run_app: RunApp, write_chats: WriteChats, mode: str) -> None:
    # "question 0" is 10 bytes and two special tokens; the answer has two more.
    path = write_chats([10, 100])
    result = run_app(
        "data=jsonl", f"data.path={path}", "data.val_fraction=0", "packing.capacity=64",
        f"packing={mode}", "train.global_batch_tokens=64", "train.steps=null", "train.epochs=1",
    )  # fmt: skip
    train = load(result.run_dir / "samples.json")["train"]
    assert train["truncated_samples"] == 1
    assert train["truncated_tokens"] == 12 + 102 - 64
    assert train["real_tokens"] == result.summary["real_tokens"] == 12 + 12 + 64
    # The cut answer has no end token among its targets: 64 - 12 positions less its role.
    assert train["loss_tokens"] == result.summary["loss_tokens"] == (10 + 1) + (64 - 12 - 1)


@pytest.mark.parametrize("mode", ["none", "trainer", "loader"])
def test_epochs_use_every_conversation_equally(
    run_app: RunApp, write_chats: WriteChats, mode: str
) -> None:
    path = write_chats([7 * i % 90 + 1 for i in range(30)])
    result = run_app(
        "data=jsonl", f"data.path={path}", "data.val_fraction=0", f"packing={mode}",
        "packing.capacity=128", "train.global_batch_tokens=256", "train.steps=null",
        "train.epochs=3",
    )  # fmt: skip
    steps = read_metrics(result.run_dir)
    assert sum(m["samples"] for m in steps) == 3 * 30
    # The schedule ends exactly with the last step (case F17): 10 % of the peak.
    assert math.isclose(steps[-1]["lr"], 0.1 * 3e-3, rel_tol=1e-9)
    assert steps[-2]["lr"] > steps[-1]["lr"]


def test_none_and_trainer_see_the_same_conversations_each_step(run_app: RunApp) -> None:
    a, b = (
        read_metrics(
            run_app(
                "packing.capacity=1024",
                "train.global_batch_tokens=4096",
                f"packing={m}",
                "train.steps=3",
                "data.limit=200",
            ).run_dir
        )
        for m in ("none", "trainer")
    )
    for x, y in zip(a, b, strict=True):
        assert (x["samples"], x["real_tokens"]) == (y["samples"], y["real_tokens"])
        assert math.isclose(x["loss"], y["loss"], rel_tol=1e-5)
        assert x["slot_tokens"] > y["slot_tokens"]


def test_steps_of_equal_real_tokens_whoever_packs(run_app: RunApp, write_chats: WriteChats) -> None:
    path = write_chats([7 * i % 90 + 1 for i in range(60)])
    counts: dict[str, list[int]] = {}
    for choice in ("packing=none", "packing=trainer", "packer=concatenative", "packer=mffd"):
        result = run_app(
            "data=jsonl", f"data.path={path}", "data.val_fraction=0", choice,
            "packing.capacity=128", "train.global_batch_tokens=null",
            "train.global_batch_real_tokens=400", "train.steps=null", "train.epochs=2",
        )  # fmt: skip
        counts[choice] = [m["real_tokens"] for m in read_metrics(result.run_dir)]
    total = sum(counts["packing=none"])
    for choice, found in counts.items():
        assert sum(found) == total, choice
        assert len(found) == total // 400, choice
        # Rows are the largest items: a step is off by less than one, and no step is left short.
        assert all(abs(n - total / len(found)) < 128 for n in found), choice
    assert counts["packing=none"] == counts["packing=trainer"]


def test_a_batch_of_samples(run_app: RunApp) -> None:
    result = run_app(
        "packing=trainer", "packing.capacity=256", "train.global_batch_tokens=null",
        "train.global_batch_samples=8", "train.steps=3", "data.limit=100",
    )  # fmt: skip
    assert [m["samples"] for m in read_metrics(result.run_dir)] == [8, 8, 8]


def test_validation_is_the_same_number_whatever_the_packing(run_app: RunApp) -> None:
    losses, tokens = set(), set()
    for choice in (["packing=none"], ["packing=trainer", "packer=bfd"], ["packer=concatenative"]):
        result = run_app(*SMALL, *choice, "train.steps=1", "data.limit=400")
        first = read_metrics(result.run_dir, "val")[0]
        losses.add(first["val_loss"])
        tokens.add(first["val_loss_tokens"])
    assert len(tokens) == 1
    assert max(losses) - min(losses) < 1e-6 * max(losses)


def test_workers_change_nothing(run_app: RunApp) -> None:
    runs = [
        run_app(*SMALL, "train.steps=4", "data.limit=300", "packing.buffer_size=32",
                f"data.num_workers={workers}")
        for workers in (0, 1, 2)
    ]  # fmt: skip
    curves = [[(m["loss"], m["real_tokens"]) for m in read_metrics(r.run_dir)] for r in runs]
    assert curves[0] == curves[1] == curves[2]


def test_a_second_run_in_the_process_equals_the_first(run_app: RunApp) -> None:
    first = run_app(*SMALL, "train.steps=3", "data.limit=100")
    run_app(*SMALL, "packing=trainer", "train.steps=2", "data.limit=100", "seed=99")
    again = run_app(*SMALL, "train.steps=3", "data.limit=100")
    losses = [[m["loss"] for m in read_metrics(r.run_dir)] for r in (first, again)]
    assert losses[0] == losses[1]


def test_the_seed_changes_the_run(run_app: RunApp) -> None:
    a, b = (run_app(*SMALL, "train.steps=1", "data.limit=100", f"seed={s}") for s in (1, 2))
    assert read_metrics(a.run_dir)[0]["loss"] != read_metrics(b.run_dir)[0]["loss"]


def test_a_diverging_run_stops_and_names_what_it_trained_on(run_app: RunApp) -> None:
    with pytest.raises(TrainingError, match=r"step \d+: the .* is (nan|inf).*chitchat\.jsonl:\d+"):
        run_app(
            *SMALL, "optimizer.lr=1e30", "optimizer.clip_grad_norm=0", "train.steps=20",
            "data.limit=100", "schedule=constant",
        )  # fmt: skip


def test_only_overlong_conversations(run_app: RunApp, write_chats: WriteChats) -> None:
    path = write_chats([300, 400, 500])
    with pytest.raises(DataError) as error:
        run_app(
            "data=jsonl", f"data.path={path}", "data.overlong=drop", "data.val_fraction=0",
            "packing.capacity=128", "train.global_batch_tokens=128", "train.steps=2",
        )  # fmt: skip
    assert "none of the 3 conversations can be used: 3 read: 0 kept, 3 dropped" in str(error.value)
    assert "3 over the capacity: chats.jsonl:" in str(error.value)
    assert "data.overlong or packing.capacity" in str(error.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_overlong_error_names_the_line(
    run_app: RunApp, write_chats: WriteChats, workers: int
) -> None:
    path = write_chats([3, 300, 4])
    with pytest.raises(DataError, match=r"^chats\.jsonl:2: this conversation has 314 tokens"):
        run_app(
            "data=jsonl", f"data.path={path}", "data.overlong=error", "data.val_fraction=0",
            "packing.capacity=128", "train.global_batch_tokens=128", "train.steps=2",
            f"data.num_workers={workers}",
        )  # fmt: skip


def test_unusable_validation_data_is_named(run_app: RunApp, write_chats: WriteChats) -> None:
    path, val = write_chats([5, 6]), write_chats([300], name="val.jsonl")
    with pytest.raises(DataError, match=r"^validation: none of the 1 conversations .*val\.jsonl:1"):
        run_app(
            "data=jsonl", f"data.path={path}", f"data.val_path={val}", "data.overlong=drop",
            "packing.capacity=128", "train.global_batch_tokens=128", "train.steps=2",
        )  # fmt: skip


def test_the_gradient_norm_is_measured_with_and_without_clipping(run_app: RunApp) -> None:
    norms = []
    for clip in ("0", "1e-3"):
        steps = read_metrics(
            run_app(
                *SMALL, "train.steps=2", "data.limit=100", f"optimizer.clip_grad_norm={clip}"
            ).run_dir
        )
        norms.append(steps[0]["grad_norm"])
    assert norms[0] == norms[1] > 0.1


@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_data_that_is_not_there_is_a_setting_s_fault(
    run_app: RunApp, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "chats.jsonl"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^data\.path=.*chats\.jsonl (does not exist|holds no)"):
        run_app("data=jsonl", f"data.path={path}", f"run_dir={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


def test_a_run_directory_is_used_once(run_app: RunApp, tmp_path: Path) -> None:
    where = f"run_dir={tmp_path / 'same'}"
    run_app(*SMALL, where, "train.steps=1", "data.limit=100")
    with pytest.raises(ConfigError, match="already holds a run"):
        run_app(*SMALL, where, "train.steps=1", "data.limit=100")


def test_no_validation_data_is_no_error(run_app: RunApp, write_chats: WriteChats) -> None:
    path = write_chats([5, 6, 7])
    result = run_app(
        "data=jsonl", f"data.path={path}", "data.val_fraction=0", "packing.capacity=64",
        "train.global_batch_tokens=64", "train.steps=2",
    )  # fmt: skip
    assert result.final_val_loss is None
    assert read_metrics(result.run_dir, "val") == []
