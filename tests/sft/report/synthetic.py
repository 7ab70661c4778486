"""Run directories with the files a run leaves, of known speed, loss and noise."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PACKERS = {
    "ffd": "data.packers.ffd.FirstFitDecreasing",
    "mffd": "data.packers.mffd.ModifiedFirstFitDecreasing",
    "bfd": "data.packers.bfd.BestFitDecreasing",
    "tight": "data.packers.tight.Tight",
    "ffs": "data.packers.ffs.FirstFitShuffle",
    "concatenative": "data.packers.concatenative.Concatenative",
    "greedy_knapsack": "data.packers.greedy_knapsack.GreedyKnapsack",
    "balanced_greedy_knapsack": "data.packers.balanced_greedy_knapsack.BalancedGreedyKnapsack",
}
SHARES = (0.0, 0.001, 0.99, 0.009)
PHASES = ("data_wait", "packing", "forward_backward", "optimizer")


@dataclass(kw_only=True)
class Synthetic:
    """One run to write.

    Attributes:
        speed: real tokens per second, before noise.
        speed_noise: relative standard deviation over runs.
        loss_shift: added to every loss.
        loss_noise: standard deviation over runs.
        shared_noise: of a seed: all its runs have the same.
        finished: whether there is a summary.
        new_metrics: whether what later versions measure is there.
        overrides: dotted settings.
    """

    mode: str = "trainer"
    packer: str = "mffd"
    seed: int = 1
    micro_batch: int | None = None
    speed: float = 8000.0
    speed_noise: float = 0.0
    loss_shift: float = 0.0
    loss_noise: float = 0.0
    shared_noise: float = 0.0
    steps: int = 40
    eval_every: int = 10
    tokens_per_step: int = 16000
    fill: float = 0.99
    finished: bool = True
    new_metrics: bool = True
    skip_steps: int = 2
    fingerprint: str = "5f3a9c1d2b"
    tokenizer: str = "bytes"
    order: int = 0
    overrides: dict[str, Any] = field(default_factory=dict)

    def config(self, run_dir: Path) -> dict[str, Any]:
        config: dict[str, Any] = {
            "seed": self.seed,
            "run_dir": str(run_dir),
            "attention": "auto",
            "model": {"_target_": "models.shapes.GPTShape", "num_layers": 4, "hidden_size": 128},
            "data": {
                "_target_": "data.sources.chitchat.ChitchatSource", "tokenizer": self.tokenizer,
                "overlong": "truncate", "val_fraction": 0.05, "limit": None, "shuffle": True,
                "num_workers": 1, "cache_dir": "datasets",
            },
            "packing": {
                "mode": self.mode, "capacity": 4096, "pad_multiple": None, "buffer_size": None,
                "kernel_boundaries": None,
            },
            "packer": {"_target_": PACKERS[self.packer], "max_samples_per_bin": None},
            "optimizer": {"_target_": "sft.optimizers.AdamW", "lr": 0.003},
            "schedule": {"_target_": "sft.schedules.Cosine", "warmup_fraction": 0.1},
            "loss": {"average": "token"},
            "train": {
                "steps": self.steps, "epochs": None, "global_batch_tokens": 16384,
                "global_batch_samples": None, "micro_batch_size": self.micro_batch,
                "eval_every": self.eval_every, "log_every": 10,
                "speed_skip_steps": self.skip_steps, "threads": None,
            },
            "logger": {"jsonl": {"_target_": "sft.loggers.jsonl.JsonlLogger"}},
        }  # fmt: skip
        for key, value in self.overrides.items():
            *sections, name = key.split(".")
            node = config
            for section in sections:
                node = node[section]
            node[name] = value
        return config


def write_run(path: Path, run: Synthetic) -> Path:
    """Write one run's directory."""
    path.mkdir(parents=True)
    # Noise of the run itself, and of its seed, which all choices share.
    rng = np.random.default_rng([run.seed, *f"{run.mode}{run.packer}{run.micro_batch}".encode()])
    block = np.random.default_rng(run.seed).normal(0, run.shared_noise or 1e-300, 2)
    speed = run.speed * np.exp(rng.normal(0, 1) * run.speed_noise + block[0])
    shift = run.loss_shift + rng.normal(0, 1) * run.loss_noise + block[1]
    records, clock, steps = _records(run, speed, shift, np.random.default_rng(run.seed))
    _dump(path / "run.json", _description(path, run))
    lines = [json.dumps(record) for record in records]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    trained = 7 * steps
    _dump(path / "samples.json", _samples(trained))
    if run.finished:
        _dump(path / "summary.json", _summary(run, records, float(speed), clock, trained))
    return path


def _records(
    run: Synthetic, speed: float, shift: float, rng: np.random.Generator
) -> tuple[list[dict[str, Any]], float, int]:
    steps = run.steps if run.finished else run.steps // 2
    records: list[dict[str, Any]] = []
    clock, tokens = 5.0, 0

    def validate(step: int) -> None:
        nonlocal clock
        clock += 3.0
        record = {
            "event": "val", "step": step, "val_loss": _loss(tokens) + shift,
            "val_loss_tokens": 4000, "val_seconds": 3.0, "total_real_tokens": tokens,
            "wall_seconds": clock,
        }  # fmt: skip
        records.append(record)

    if run.eval_every:
        validate(0)
    for step in range(1, steps + 1):
        real = int(run.tokens_per_step * (1 + rng.normal(0, 0.01)))
        seconds = real / speed
        tokens += real
        clock += seconds
        slots = int(real / run.fill)
        record = {
            "event": "train", "step": step, "loss": _loss(tokens) + shift + rng.normal(0, 0.05),
            "lr": 0.001, "grad_norm": 1.0, "slot_tokens": slots, "real_tokens": real,
            "loss_tokens": int(real * 0.45), "samples": 7, "microbatches": 4,
            "fill": real / slots, "total_real_tokens": tokens,
            "slot_tokens_per_s": slots / seconds, "real_tokens_per_s": speed,
            "loss_tokens_per_s": speed * 0.45, "data_wait_seconds": 0.0,
            "packing_seconds": seconds * 0.001, "forward_backward_seconds": seconds * 0.99,
            "optimizer_seconds": seconds * 0.009, "step_seconds": seconds,
            "squared_length_sum": 10**8, "attention_imbalance": 0.12, "model_flops": 1e12,
            "model_flops_per_s": 1e12 / seconds, "mfu": None, "wall_seconds": clock,
        }  # fmt: skip
        records.append(record)
        if run.eval_every and (step % run.eval_every == 0 or step == steps):
            validate(step)
    if not run.new_metrics:
        for record in records:
            for name in _NEW_RECORD:
                record.pop(name, None)
    return records, clock, steps


_NEW_RECORD = (
    "squared_length_sum", "attention_imbalance", "model_flops", "model_flops_per_s", "mfu",
    "wall_seconds",
)  # fmt: skip


def _loss(tokens: int) -> float:
    return float(2.2 + 3.5 * np.exp(-tokens / 120_000))


def _description(path: Path, run: Synthetic) -> dict[str, Any]:
    description: dict[str, Any] = {
        "config": run.config(path),
        "command": ["train.py", f"packing={run.mode}", f"packer={run.packer}", f"seed={run.seed}"],
        "versions": {"python": "3.12.1", "torch": "2.14.1", "megatron-core": "0.19.2"},
        "git_commit": "0123456789abcdef",
        "hardware": {"cpu": "A CPU", "cpu_cores": 2, "torch_threads": 2, "gpus": []},
        "kernels": "torch (no CUDA device)",
    }
    if run.new_metrics:
        content = {"conversations": 3789, "fingerprint": run.fingerprint}
        description["data"] = {"train": content, "val": {**content, "conversations": 199}}
        description["tokenizer"] = run.tokenizer
        description["started_at"] = f"2026-11-30T12:{run.order:02d}:00+00:00"
    return description


def _samples(trained: int) -> dict[str, Any]:
    return {
        "prepared": {
            "read": 7168, "dropped": {"fewer than two turns with text": 3151}, "written": 3988,
        },
        "train": {
            "read": 512, "kept": 509, "dropped_total": 3, "dropped": {"no loss tokens": 3},
            "examples": {}, "truncated_samples": 72, "truncated_tokens": 320404,
            "real_tokens": 518147, "loss_tokens": 242988, "trained": trained,
            "not_trained": 509 - trained,
        },
        "val": {"read": 199, "kept": 199, "dropped_total": 0, "dropped": {}},
    }  # fmt: skip


def _summary(
    run: Synthetic, records: list[dict[str, Any]], speed: float, clock: float, trained: int
) -> dict[str, Any]:
    steps = [r for r in records if r["event"] == "train"]
    vals = [r for r in records if r["event"] == "val"]
    real, timed = sum(r["real_tokens"] for r in steps), max(0, len(steps) - run.skip_steps)
    microbatches = 4 * len(steps)
    packs = run.mode != "none"
    summary: dict[str, Any] = {
        "steps": len(steps), "final_loss": steps[-1]["loss"],
        "final_val_loss": vals[-1]["val_loss"] if vals else None,
        "validations": [{k: v[k] for k in ("step", "val_loss", "val_loss_tokens")} for v in vals],
        "slot_tokens": int(real / run.fill), "real_tokens": real, "loss_tokens": int(real * 0.45),
        "samples": trained, "microbatches": microbatches, "fill": run.fill,
        "rows": microbatches + 3 if packs else None, "fewest_rows": microbatches if packs else None,
        "timed_steps": timed, "timed_seconds": real / speed if timed else 0.0,
        "slot_tokens_per_s": speed / run.fill if timed else None,
        "real_tokens_per_s": speed if timed else None,
        "loss_tokens_per_s": speed * 0.45 if timed else None,
        "step_time_shares": dict(zip(PHASES, SHARES, strict=True)) if timed else {},
        "peak_memory_bytes": 2**30 + 10**6 * run.seed, "wall_seconds": clock,
    }  # fmt: skip
    if run.new_metrics:
        half = microbatches // 2
        edges = np.linspace(0, 4096, 41).tolist()
        shape = np.geomspace(1, 0.02, 40)
        counts = np.random.default_rng(0).multinomial(trained, shape / shape.sum())
        summary |= {
            "squared_length_sum": 10**9, "attention_imbalance": 0.12,
            "samples_per_microbatch": trained / microbatches, "model_flops_per_s": 2e10,
            "mfu": None, "peak_flops_per_s": None,
            "length_histogram": {"bin_edges": edges, "counts": counts.tolist()},
            "segments_histogram": {"counts": {"1": half, "2": half // 2, "3": half // 2}},
        }  # fmt: skip
    return summary


def write_sweep(directory: Path, runs: list[tuple[str, Synthetic]], failed: dict[str, str]) -> Path:
    """Write runs and their sweep.json; ``failed``: names of jobs that failed, with the error."""
    jobs = []
    for order, (name, run) in enumerate(runs):
        run = copy.copy(run)
        run.order, run.finished = order, run.finished and name not in failed
        write_run(directory / name, run)
        jobs.append(
            {
                "name": name, "overrides": name.split(","), "error": failed.get(name),
                "status": "failed" if name in failed else "done",
                "exit_code": 1 if name in failed else 0, "wall_seconds": 60.0, "order": order,
            }
        )  # fmt: skip
    _dump(
        directory / "sweep.json",
        {
            "command": ["train.py", "-m", "packing=none,trainer"],
            "started_at": "2026-11-30T12:00:00+00:00", "finished_at": "2026-11-30T13:00:00+00:00",
            "launcher": "processes", "jobs": jobs,
        },
    )  # fmt: skip
    return directory


def compare_sweep(directory: Path, *, seeds: int = 3, failed: dict[str, str] | None = None) -> Path:
    """Both paths, every packer, two baselines: the comparison that the report is for."""
    runs = []
    for seed in range(1, seeds + 1):
        noise: dict[str, Any] = {
            "seed": seed, "speed_noise": 0.012, "loss_noise": 0.004, "shared_noise": 0.02
        }  # fmt: skip
        for size, speed, fill in ((1, 8500, 1.0), (4, 5500, 0.617)):
            run = Synthetic(mode="none", micro_batch=size, speed=speed, fill=fill, **noise)
            runs.append((f"packing=none,train.micro_batch_size={size},seed={seed}", run))
        for mode, gain in (("trainer", 1.08), ("loader", 1.0)):
            for k, packer in enumerate(PACKERS):
                run = Synthetic(
                    mode=mode, packer=packer, speed=8500 * gain * (1 - 0.012 * k),
                    fill=(1.0 if mode == "trainer" else 0.985) - 0.004 * k, **noise,
                )  # fmt: skip
                runs.append((f"packer={packer},packing={mode},seed={seed}", run))
    return write_sweep(directory, runs, failed or {})


def _dump(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
