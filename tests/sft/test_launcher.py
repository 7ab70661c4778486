"""Sweeps from the command line: fresh processes or one, jobs that fail, Ctrl-C, and the report.

Most start a program that stands in for train.py: its task only does as its seed says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import read_metrics

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import os, sys, time, types
from pathlib import Path

def write_report(directories, output):
    assert directories == [output]
    if "BAD_REPORT" in os.environ:
        raise RuntimeError("no\\nink")
    (output / "report.html").write_text("a report")
    return output / "report.html"

sys.modules["sft.report"] = types.SimpleNamespace(write_report=write_report)

from sft.cli import launch
from sft.errors import ConfigError, TrainingError

def task(tree):
    Path(tree.run_dir, "run.json").write_text("{}")
    print("in process", os.getpid(), "seed", tree.seed, flush=True)
    match tree.seed:
        case 401: raise ConfigError("seed=401: is not liked")
        case 402: raise TrainingError("step 3: the loss is nan")
        case 403: raise RuntimeError("a bug")
        case 404: os.kill(os.getpid(), 9)
        case 405: sys.exit(7)
        case 406: time.sleep(60)
    Path(tree.run_dir, "summary.json").write_text('{"final_val_loss": 2.5}')
    Path(tree.run_dir, "packer.txt").write_text(tree.packer._target_)
    return 2.5

if __name__ == "__main__":
    launch(task)
"""


@dataclass(frozen=True)
class Swept:
    """A sweep that has ended."""

    code: int
    out: str
    err: str
    directory: Path

    @property
    def jobs(self) -> list[dict[str, Any]]:
        content = json.loads((self.directory / "sweep.json").read_text("utf-8"))
        return list(content["jobs"])

    def log(self, job: int) -> str:
        return (self.directory / self.jobs[job]["name"] / "train.log").read_text("utf-8")


type Sweep = Callable[..., Swept]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "cwd").mkdir()
    return tmp_path / "program.py"


@pytest.fixture
def sweep(program: Path, tmp_path: Path) -> Sweep:
    """Starts the program with these words, in an empty directory."""

    def run(*words: str, multirun: bool = True, **variables: str) -> Swept:
        directory = tmp_path / "sweep"
        done = subprocess.run(
            [sys.executable, str(program), *["-m"] * multirun, *words,
             f"hydra.sweep.dir={directory}"],
            cwd=tmp_path / "cwd",
            env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )  # fmt: skip
        assert list((tmp_path / "cwd").iterdir()) == []
        return Swept(done.returncode, done.stdout, done.stderr, directory)

    return run


# --- jobs that fail


def test_each_job_is_a_process_and_one_that_fails_stops_no_other(sweep: Sweep) -> None:
    done = sweep("seed=403,404,401,402,405,1")
    assert done.code == 1
    jobs = done.jobs
    assert [job["status"] for job in jobs] == ["failed"] * 5 + ["done"]
    assert [job["exit_code"] for job in jobs] == [1, 137, 2, 1, 7, 0]
    assert [job["error"] for job in jobs] == [
        "RuntimeError: a bug",
        "killed by signal 9 (SIGKILL)",
        "seed=401: is not liked",
        "step 3: the loss is nan",
        "ended with exit code 7",
        None,
    ]
    assert [job["order"] for job in jobs] == [1, 2, 3, 4, 5, 6]
    assert all(job["wall_seconds"] > 0 for job in jobs)
    for i in range(5):
        assert jobs[i]["error"] in done.log(i)
    for i in (0, 3):
        assert "Traceback (most recent call last):" in done.log(i)
        assert ", in task\n" in done.log(i)
    assert done.log(5) == ""
    pids = [line.split()[2] for line in done.out.splitlines() if line.startswith("in process")]
    assert len(set(pids)) == 6
    # Each job's heading, output and end come in order.
    said = [line for line in done.out.splitlines() if line.startswith(("===", "in process"))]
    assert said[3] == "=== job 2 of 6: seed=404"
    assert said[4].endswith("seed 404")
    assert said[5].startswith("=== job 2 of 6: failed: killed by signal 9 (SIGKILL), ")
    assert "sweep of 6 jobs: 1 done, 5 failed, " in done.out
    assert done.err.splitlines()[-1] == (
        f"stowage: 5 of 6 jobs failed; why is said above, in {done.directory / 'sweep.json'} and "
        "in the jobs' logs"
    )


def test_in_one_process_they_fail_the_same_way(sweep: Sweep) -> None:
    done = sweep("hydra/launcher=in_process", "seed=403,401,402,405,1")
    assert done.code == 1
    assert [job["exit_code"] for job in done.jobs] == [1, 2, 1, 7, 0]
    assert [job["error"] for job in done.jobs] == [
        "RuntimeError: a bug",
        "seed=401: is not liked",
        "step 3: the loss is nan",
        "ended with exit code 7",
        None,
    ]
    for i in (0, 2):
        assert "Traceback (most recent call last):" in done.log(i)
        assert ", in task\n" in done.log(i)
    assert done.log(4) == ""
    pids = [line.split()[2] for line in done.out.splitlines() if line.startswith("in process")]
    assert len(pids) == 5
    assert len(set(pids)) == 1


@pytest.mark.parametrize("launcher", ["processes", "in_process"])
def test_on_request_the_first_failure_ends_it(sweep: Sweep, launcher: str) -> None:
    done = sweep(f"hydra/launcher={launcher}", "hydra.launcher.fail_fast=true", "seed=402,1,2")
    assert done.code == 1
    assert [job["status"] for job in done.jobs] == ["failed", "not started", "not started"]
    assert "1 of 3 jobs failed and 2 were not started" in done.err
    assert done.out.count("in process") == 1


def test_when_every_job_is_refused_the_sweep_is(sweep: Sweep) -> None:
    done = sweep("seed=401", "packer=ffd,mffd")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert done.err.splitlines()[-1] == ("stowage: all 2 jobs were refused: seed=401: is not liked")


def start_sweep(program: Path, directory: Path | str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(program), "-m", *words, f"hydra.sweep.dir={directory}"],
        cwd=program.parent / "cwd",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Whoever runs the tests in the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.parametrize(
    ("sent", "code", "error"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_ctrl_c_ends_the_running_job_and_the_sweep(
    program: Path, tmp_path: Path, sent: signal.Signals, code: int, error: str
) -> None:
    process = start_sweep(program, tmp_path / "sweep", "seed=1,406,2")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("in process") and line.endswith("406\n"):
            job = int(line.split()[2])
            break
    process.send_signal(sent)
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in rest
    with pytest.raises(ProcessLookupError):
        os.kill(job, 0)
    jobs = Swept(code, "", "", tmp_path / "sweep").jobs
    assert [j["status"] for j in jobs] == ["done", "failed", "not started"]
    assert (jobs[1]["exit_code"], jobs[1]["error"]) == (code, error)


# --- directories


def test_two_sweeps_of_the_same_moment(program: Path, tmp_path: Path) -> None:
    # The clock does not go on while they start: its century is all that is in the name.
    clock = tmp_path / "sweeps" / "${now:%C}"
    both = [start_sweep(program, clock, "seed=1,2") for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    directories = sorted((tmp_path / "sweeps").iterdir())
    assert len(directories) == 2
    assert directories[1].name == f"{directories[0].name}-2"
    for directory in directories:
        assert {p.parent.name for p in directory.glob("*/run.json")} == {"seed=1", "seed=2"}
        assert (directory / "multirun.yaml").exists()


def test_a_directory_that_holds_a_sweep_is_left_as_it_is(sweep: Sweep) -> None:
    first = sweep("seed=1,2", "hydra/launcher=in_process")
    assert first.code == 0
    before = {p: p.read_bytes() for p in first.directory.rglob("*") if p.is_file()}
    again = sweep("seed=3", "hydra/launcher=in_process")
    assert again.code == 2
    assert again.err == (
        f"stowage: hydra.sweep.dir={first.directory}: already holds a sweep or a run; choose "
        "another directory or remove it\n"
    )
    assert {p: p.read_bytes() for p in first.directory.rglob("*") if p.is_file()} == before


def test_a_job_gets_its_words_and_what_holds_for_all(program: Path, tmp_path: Path) -> None:
    """A directory with blanks, commas and quotes; a packer from a directory of one's own."""
    (tmp_path / "conf" / "packer").mkdir(parents=True)
    (tmp_path / "conf" / "packer" / "mine.yaml").write_text("_target_: mine\n", encoding="utf-8")
    directory = tmp_path / """it's, "so" 1=2"""
    quoted = str(directory).replace('"', '\\"')
    process = start_sweep(
        program, f'"{quoted}"', "--config-dir", str(tmp_path / "conf"),
        "packer=mine,first_fit_decreasing", "hydra.job.name=job",
        "hydra.sweep.subdir='${seed}/of ${hydra.job.override_dirname}'",
    )  # fmt: skip
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    found = {p.parent.relative_to(directory): p.read_text() for p in directory.rglob("packer.txt")}
    assert found == {
        Path("1234/of_packer=mine"): "mine",
        Path("1234/of_packer=ffd"): "data.packers.ffd.FirstFitDecreasing",
    }
    assert len(list(directory.rglob("job.log"))) == 2


# --- what is refused before anything runs


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["packer=ffd,nope"], "packer=nope: there is no such packer. Allowed: "),
        (["train.stepz=1,2"], "train.stepz=1,2: there is no such key. Did you mean train.steps? "),
        (["seed=1,2", "run_dir=here"], "run_dir=here: each job of a sweep has a directory of its "
         "own; use hydra.sweep.dir=..."),
        (["hydra/launcher=process"], "hydra/launcher=process: there is no such hydra/launcher. Did "
         "you mean hydra/launcher=processes? Allowed: basic, in_process, processes"),
        (["experiment=compare_quick,demo"], "experiment=compare_quick: brings a sweep of its own "
         "and cannot be one of several"),
    ],
)  # fmt: skip
def test_a_wrong_sweep_is_refused_whole(sweep: Sweep, words: list[str], told: str) -> None:
    done = sweep(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"stowage: {told}")
    assert done.err.count("\n") == 1
    assert not done.directory.exists()


def test_a_sweep_is_not_started_by_many(sweep: Sweep) -> None:
    meeting = {"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = sweep("seed=1,2", WORLD_SIZE="2", RANK="0", **meeting)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("stowage: a sweep starts its jobs itself")
    assert not done.directory.exists()


# --- an experiment that brings its sweep


@pytest.mark.parametrize("multirun", [True, False])
def test_an_experiment_that_is_a_sweep(sweep: Sweep, multirun: bool) -> None:
    done = sweep(
        "experiment=compare", "seed=5", "packer=ffd,mffd", "hydra/launcher=in_process",
        multirun=multirun,
    )  # fmt: skip
    assert done.code == 0
    assert [job["name"] for job in done.jobs] == [
        "packing=none,train.micro_batch_size=1",
        "packing=none,train.micro_batch_size=4",
        "packer=ffd,packing=trainer",
        "packer=mffd,packing=trainer",
        "packer=ffd,packing=loader",
        "packer=mffd,packing=loader",
    ]
    assert "sweep: packer changes nothing with packing=none and is left out there\n" in done.out


def test_choices_of_an_experiment_that_change_nothing_are_no_mistake(sweep: Sweep) -> None:
    done = sweep("experiment=compare", "packing=trainer", "packer=ffd", "seed=1", multirun=False)
    assert done.code == 0
    assert [job["overrides"] for job in done.jobs] == [
        ["packing=trainer", "packer=ffd", "seed=1", "experiment=compare"]
    ]


# --- the report


def test_the_report_is_written_and_its_failure_changes_no_exit_code(sweep: Sweep) -> None:
    done = sweep("seed=402,1", "hydra/launcher=in_process")
    assert f"\nreport: {done.directory / 'report.html'}\n" in done.out
    assert (done.code, (done.directory / "report.html").read_text()) == (1, "a report")


def test_a_report_that_fails_is_said_in_a_line(sweep: Sweep) -> None:
    done = sweep("seed=1,2", "hydra/launcher=in_process", BAD_REPORT="1")
    assert done.code == 0
    assert done.err == "stowage: the report could not be written (RuntimeError: no ink)\n"


# --- real runs


@pytest.mark.slow
def test_one_process_and_several_give_the_same_losses(tmp_path: Path, chitchat_dir: Path) -> None:
    started = time.monotonic()
    losses = {}
    for launcher in ("processes", "in_process"):
        directory = tmp_path / launcher
        done = subprocess.run(
            [
                sys.executable, str(ROOT / "train.py"), "-m", f"hydra/launcher={launcher}",
                "packing=loader,trainer", f"hydra.sweep.dir={directory}", "packer=ffd",
                f"data.cache_dir={chitchat_dir}", "data.limit=20", "data.num_workers=0",
                "model.num_layers=1", "packing.capacity=256", "train.global_batch_tokens=512",
                "train.steps=2", "train.eval_every=0",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        jobs = Swept(0, "", "", directory).jobs
        assert [job["name"] for job in jobs] == ["packing=loader", "packing=trainer"]
        assert sum(job["wall_seconds"] for job in jobs) < time.monotonic() - started
        losses[launcher] = [
            [(r["loss"], r["grad_norm"]) for r in read_metrics(directory / job["name"])]
            + [(r["val_loss"], 0.0) for r in read_metrics(directory / job["name"], "val")]
            for job in jobs
        ]
    assert losses["processes"] == losses["in_process"]
    first, second = losses["processes"]
    assert len(first) == len(second) == 4
    assert first != second


@pytest.mark.slow
def test_a_job_that_is_killed_is_missing_from_the_report_and_no_other_is(
    tmp_path: Path, chitchat_dir: Path
) -> None:
    directory = tmp_path / "sweep"
    victim = directory / "packing=trainer"
    running = subprocess.Popen(
        [
            sys.executable, str(ROOT / "train.py"), "-m", f"hydra.sweep.dir={directory}",
            "packing=trainer,loader", "packer=ffd", f"data.cache_dir={chitchat_dir}",
            "data.limit=20", "data.num_workers=0", "model.num_layers=1", "packing.capacity=256",
            "train.global_batch_tokens=512", "train.steps=40", "train.eval_every=0",
            "train.log_every=100",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )  # fmt: skip
    try:
        kill_when_training(victim)
        _, err = running.communicate(timeout=300)
    finally:
        running.terminate()  # nothing where it has ended; its jobs end with it
    assert running.returncode == 1
    assert "Traceback" not in err
    swept = Swept(0, "", "", directory)
    killed, *others = sorted(swept.jobs, key=lambda job: job["name"] != victim.name)
    assert (killed["name"], killed["status"]) == (victim.name, "failed")
    assert [job["status"] for job in others] == ["done"]
    report = json.loads((directory / "report.json").read_text("utf-8"))
    (missing,) = report["failures"]
    assert missing["name"] == victim.name
    assert "SIGKILL" in missing["reason"]
    table = report["table"]
    finished = {row[table["columns"].index("choice")] for row in table["rows"] if row[6]}
    assert table["columns"][6] == "runs"
    assert finished == {"loader + ffd"}
    for page in ("report.html", "report.md"):
        assert victim.name in (directory / page).read_text("utf-8")


def kill_when_training(run_dir: Path) -> None:
    """Kill the process that trains in ``run_dir``, in the middle of its steps."""
    metrics, deadline = run_dir / "metrics.jsonl", time.monotonic() + 240
    while not (metrics.exists() and '"train"' in metrics.read_text("utf-8")):
        assert time.monotonic() < deadline, f"{run_dir} trained nothing"
        time.sleep(0.05)
    # A job is a process group of its own, and the words of its command say which it is.
    words = {"packing=trainer", "packer=ffd"}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        command = entry.read_bytes().decode(errors="replace").split("\0")
        if words <= set(command):
            os.kill(int(entry.parent.name), signal.SIGKILL)
            return
    raise AssertionError(f"no process has {words}")
