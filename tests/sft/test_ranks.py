"""A run of several processes, started as a user starts it, and what it does when one is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import SMALL_MODEL, read_metrics

RunApp = Callable[..., Any]

ROOT = Path(__file__).resolve().parents[2]
STEPS = 30
BASE = (
    "packing.capacity=256", "train.global_batch_tokens=1024", f"train.steps={STEPS}",
    "data.limit=300", "train.save_every=2", "train.eval_every=10",
)  # fmt: skip

pytestmark = pytest.mark.slow


def start(ranks: int, *words: str) -> list[subprocess.Popen[str]]:
    """So many processes of a run, without torchrun, which would end the others itself."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": str(ROOT)}
    options = [word for word in words if word.startswith("-")]
    settings = [*SMALL_MODEL, *(word for word in words if word not in options)]
    return [
        subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *options, *settings],
            env={
                **os.environ, **shared, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit code and output of each."""
    said = [process.communicate(timeout=200)[0] for process in processes]
    return [(p.returncode, text) for p, text in zip(processes, said, strict=True)]


def curve(run_dir: Path) -> list[float]:
    steps, validations = read_metrics(run_dir), read_metrics(run_dir, "val")
    return [m["loss"] for m in steps] + [m["val_loss"] for m in validations]


def counts(run_dir: Path) -> list[tuple[int, ...]]:
    names = "step", "samples", "real_tokens", "loss_tokens", "microbatches"
    return [tuple(m[name] for name in names) for m in read_metrics(run_dir)]


def test_two_processes_one_killed_and_one_goes_on(
    run_app: RunApp, tmp_path: Path, chitchat_dir: Path
) -> None:
    alone = run_app(*BASE).run_dir
    shared = tmp_path / "shared"
    words = (*BASE, f"data.cache_dir={chitchat_dir}", f"run_dir={shared}")

    processes = start(2, *words)
    seen = shared / "checkpoints" / "step-2"
    end = time.monotonic() + 150
    while not seen.exists() and time.monotonic() < end and processes[1].poll() is None:
        time.sleep(0.02)
    processes[1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    (code, said), _ = ended(processes)
    assert time.monotonic() - killed < 60
    assert code == 1, said
    assert "another process of the run has ended" in said and "Traceback" not in said
    done = [m["step"] for m in read_metrics(shared)]
    assert done == list(range(1, len(done) + 1)) and len(done) < STEPS

    # Two again, and to the end.
    outcomes = ended(start(2, *words, "resume=auto"))
    assert [code for code, _ in outcomes] == [0, 0], outcomes
    assert "processes" in outcomes[0][1] and "data 2 parallel" in outcomes[0][1]
    assert outcomes[1][1].strip() == "", "only the first process speaks"
    assert curve(shared) == pytest.approx(curve(alone), rel=1e-5)
    assert counts(shared) == counts(alone)
    samples = [json.loads((d / "samples.json").read_text("utf-8")) for d in (shared, alone)]
    assert samples[0] == samples[1]
    assert not [p for p in psutil.Process().children(recursive=True) if "train.py" in p.cmdline()]


def test_all_are_refused_and_one_says_so(tmp_path: Path) -> None:
    outcomes = ended(start(2, "parallel.tp=3", "model.vocab_multiple=48", f"run_dir={tmp_path}/a"))
    assert [code for code, _ in outcomes] == [2, 2]
    assert outcomes[0][1].startswith("stowage: parallel.tp=3: ")
    assert "multiple of 3; there are 2" in outcomes[0][1]
    assert outcomes[1][1] == ""
    assert not (tmp_path / "a").exists()


def test_a_sweep_of_several_processes_is_refused() -> None:
    outcomes = ended(start(2, "-m", "seed=1,2"))
    assert [code for code, _ in outcomes] == [2, 2]
    assert outcomes[0][1].startswith("stowage: a sweep starts its jobs itself")
