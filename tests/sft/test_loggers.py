"""Loggers: what they write, read back with their own readers, and that none stops a run."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from hydra import compose, initialize_config_dir

from sft.config import component, resolve
from sft.errors import ConfigError, TrainingError
from sft.loggers.base import MetricLogger, Metrics, MetricSink, by_event
from sft.loggers.jsonl import JsonlLogger
from sft.loggers.run_log import RunLog
from sft.loggers.tensorboard import TensorBoardLogger
from sft.loggers.wandb import WandbLogger, WandbMode, log_comparison, logger_of
from tests.conftest import CONF_DIR, read_metrics

ROOT = Path(__file__).resolve().parents[2]

VAL = {"event": "val", "step": 0, "val_loss": 5.5, "total_real_tokens": 0, "wall_seconds": 0.5}
TRAIN: list[Metrics] = [
    {"event": "train", "step": step, "loss": 5.0 - step, "lr": 1e-3, "mfu": None,
     "total_real_tokens": 100 * step, "wall_seconds": 1.0 * step}
    for step in (1, 2, 3)
]  # fmt: skip
RUN = {"config": {"seed": 7, "packing": {"mode": "loader"}}, "command": ["train.py", "seed=7"]}
SUMMARY = {"steps": 3, "final_loss": 2.0, "rows": None, "step_time_shares": {"packing": 0.25}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No key, no settings, and a home that shows what is written outside the run."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    return home


def make_run(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(RUN), encoding="utf-8")
    return directory


def log_run(
    run_dir: Path,
    loggers: Mapping[str, MetricLogger],
    records: list[Metrics] = [VAL, *TRAIN],  # noqa: B006
    fails: bool = False,
    writes: bool = True,
) -> list[str]:
    """A run of nothing but its logging; returns what it said."""
    said: list[str] = []
    with RunLog(run_dir, loggers, said.append, writes=writes) as log:
        log.open_mirrors()
        for record in records:
            log(record)
        if fails:
            raise TrainingError("step 3: the loss is nan")
        log.done(SUMMARY)
    return said


# ---- wandb, read back with its own reader


@dataclass
class Written:
    """What a .wandb file holds."""

    id: str = ""
    project: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    exit_code: int | None = None

    def __post_init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.x_axis_of: dict[str, str] = {}


def items(updates: Any) -> Iterator[tuple[str, Any]]:
    for item in updates:
        yield item.key or ".".join(item.nested_key), json.loads(item.value_json)


def read_wandb(directory: Path) -> list[Written]:
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    found = []
    for path in sorted(directory.glob("wandb/offline-run-*/run-*.wandb")):
        written, metrics = Written(), {}
        store = DataStore()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run = record.run
                written.id, written.project, written.name = (
                    run.run_id,
                    run.project,
                    run.display_name,
                )
                written.group, written.job_type = run.run_group, run.job_type
                written.config |= dict(items(run.config.update))
            elif kind == "config":
                written.config |= dict(items(record.config.update))
            elif kind == "history":
                written.history.append(dict(items(record.history.item)))
            elif kind == "summary":
                written.summary |= dict(items(record.summary.update))
            elif kind == "exit":
                written.exit_code = record.exit.exit_code
            elif kind == "metric":
                name = record.metric.name or record.metric.glob_name
                metrics[name] = record.metric.step_metric
        store.close()
        written.x_axis_of = metrics
        found.append(written)
    return found


def only(directory: Path) -> Written:
    (written,) = read_wandb(directory)
    return written


def test_wandb_files_hold_the_run(
    tmp_path: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = make_run(tmp_path / "a-run")
    assert log_run(run_dir, {"wandb": WandbLogger(project="mine")}) == []
    written = only(run_dir)
    assert written.id == (run_dir / "wandb_id").read_text().strip()
    assert len(written.id) == 16
    assert (written.project, written.name, written.group) == ("mine", "a-run", "")
    assert {k: v for k, v in written.config.items() if k in RUN} == RUN
    rows = [{k: v for k, v in row.items() if not k.startswith("_")} for row in written.history]
    assert rows == [
        {"step": 0, "val/loss": 5.5, "total_real_tokens": 0, "wall_seconds": 0.5},
        *[{"step": m["step"], "train/loss": m["loss"], "train/lr": 1e-3,
           "total_real_tokens": m["total_real_tokens"], "wall_seconds": m["wall_seconds"]}
          for m in TRAIN],
    ]  # fmt: skip
    assert [row["_step"] for row in written.history] == [0, 1, 2, 3]
    assert written.x_axis_of["train/*"] == written.x_axis_of["val/*"] == "step"
    assert {"step", "total_real_tokens", "wall_seconds"} <= set(written.x_axis_of)
    assert written.summary["final_loss"] == 2.0
    assert written.summary["step_time_shares"] == {"packing": 0.25}
    assert written.exit_code == 0
    # All of it is in the run's directory, and nothing was printed.
    assert not [p for p in home.rglob("*") if p.is_file()]
    assert capfd.readouterr() == ("", "")


def test_a_validation_and_its_step_are_one_row(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    val = {**VAL, "step": 3, "total_real_tokens": 300, "wall_seconds": 3.5}
    log_run(run_dir, {"wandb": WandbLogger()}, [*TRAIN, val])
    last = only(run_dir).history[-1]
    assert (last["step"], last["train/loss"], last["val/loss"]) == (3, 2.0, 5.5)


@pytest.mark.parametrize("first_fails", [False, True])
def test_two_jobs_of_a_process_have_two_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_fails: bool
) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "inherited")
    monkeypatch.setenv("WANDB_RESUME", "must")
    monkeypatch.setenv("WANDB_RUN_GROUP", "inherited")
    monkeypatch.setenv("WANDB_SWEEP_ID", "inherited")
    monkeypatch.setenv("WANDB_MODE", "online")
    runs = [make_run(tmp_path / name) for name in ("one", "two")]
    if first_fails:
        with pytest.raises(TrainingError):
            log_run(runs[0], {"wandb": WandbLogger()}, fails=True)
    else:
        log_run(runs[0], {"wandb": WandbLogger()})
    log_run(runs[1], {"wandb": WandbLogger()})
    one, two = map(only, runs)
    assert one.id != two.id
    assert "inherited" not in (one.id, two.id, one.group, two.group)
    assert (one.name, two.name) == ("one", "two")
    assert (one.exit_code, two.exit_code) == (int(first_fails), 0)
    assert [row["step"] for row in one.history] == [row["step"] for row in two.history]
    assert ("final_loss" in one.summary) is not first_fails
    # The user's environment is as it was, and nothing of wandb goes on.
    assert {n for n in os.environ if n.startswith("WANDB_")} == {
        "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_RUN_GROUP", "WANDB_SWEEP_ID", "WANDB_MODE"
    }  # fmt: skip
    assert not [p for p in psutil.Process().children(True) if "wandb" in p.name()]


@pytest.mark.parametrize("mark", ["multirun.yaml", "sweep.json"])
def test_a_sweep_is_one_group(tmp_path: Path, mark: str) -> None:
    sweep = tmp_path / "12-00-00.5"
    runs = [make_run(sweep / f"packer={name}") for name in ("ffd", "bfd", "mffd")]
    (sweep / mark).write_text("{}", encoding="utf-8")
    for run_dir in runs:
        log_run(run_dir, {"wandb": WandbLogger()})
    written = [only(run_dir) for run_dir in runs]
    assert {w.group for w in written} == {"12-00-00.5"}
    assert len({w.id for w in written}) == 3


def test_a_run_that_goes_on_keeps_its_id_and_has_each_step_once(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    (run_dir / "wandb_id").write_text("kept123\n", encoding="utf-8")
    settings = WandbLogger()
    for steps in ((1, 2), (3,)):
        sink = settings.open(run_dir)
        for step in steps:
            sink.log(TRAIN[step - 1])
        sink.close(SUMMARY)
    parts = read_wandb(run_dir)
    assert [part.id for part in parts] == ["kept123", "kept123"]
    assert sorted(row["_step"] for part in parts for row in part.history) == [1, 2, 3]
    assert (run_dir / "wandb_id").read_text() == "kept123\n"


def test_disabled_logs_nothing(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    assert log_run(run_dir, {"wandb": WandbLogger(mode=WandbMode.DISABLED)}) == []
    assert {p.name for p in run_dir.iterdir()} == {"run.json", "metrics.jsonl"}


@pytest.mark.parametrize("terminal", [False, True])
def test_online_without_a_key_asks_nothing_and_training_goes_on(
    tmp_path: Path, home: Path, terminal: bool
) -> None:
    run_dir = make_run(tmp_path / "run")
    code = (
        "import sys; from tests.sft.test_loggers import *\n"
        "logging.basicConfig(filename=sys.argv[1] + '/train.log')\n"
        "print(*log_run(Path(sys.argv[1]), {'wandb': WandbLogger(mode=WandbMode.ONLINE)}))"
    )
    # On a terminal wandb would ask, and nobody answers here.
    ours, theirs = os.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code, str(run_dir)],
        cwd=ROOT, stdin=theirs if terminal else subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=theirs if terminal else subprocess.STDOUT, text=True, timeout=60, check=False,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.set_blocking(ours, False)
    with pytest.raises(BlockingIOError):  # nothing was written to the terminal
        raise AssertionError(os.read(ours, 4096))
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0
    assert done.stdout == (
        "logger wandb is given up, the run goes on without it: No API key configured. Use `wandb "
        "login` to log in. logger.wandb.mode=offline needs neither a key (WANDB_API_KEY) nor a "
        "network\n"
    )
    assert [m["step"] for m in read_metrics(run_dir)] == [1, 2, 3]
    assert "Traceback" in (run_dir / "train.log").read_text(encoding="utf-8")
    assert not (home / "netrc").exists()


def test_a_run_outlives_wandbs_own_process(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    code = (
        "import psutil, sys; from tests.sft.test_loggers import *\n"
        "logging.basicConfig(filename=sys.argv[1] + '/train.log'); said = []\n"
        "with RunLog(Path(sys.argv[1]), {'wandb': WandbLogger()}, said.append) as log:\n"
        "    log.open_mirrors(); log(VAL); log(TRAIN[0])\n"
        "    core = [p for p in psutil.Process().children(True) if 'wandb' in p.name()]\n"
        "    for process in core: process.kill()\n"
        "    psutil.wait_procs(core); log(TRAIN[1]); log(TRAIN[2]); log.done(SUMMARY)\n"
        "print(len(core) > 0, len(said))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run_dir)],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True 1\n"), done.stderr
    assert [m["step"] for m in read_metrics(run_dir)] == [1, 2, 3]


def test_online_with_nobody_there(tmp_path: Path, home: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    code = (
        "import sys; from tests.sft.test_loggers import *; import sft.loggers.wandb as w\n"
        "logging.basicConfig(filename=sys.argv[1] + '/train.log'); w._CONNECT_SECONDS = 1\n"
        "print(*log_run(Path(sys.argv[1]), {'wandb': WandbLogger(mode=WandbMode.ONLINE)}))"
    )
    nowhere = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(run_dir)],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        check=False, env={**os.environ, **nowhere},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("logger wandb is given up, the run goes on without it: ")
    assert len(done.stdout.splitlines()) == 1
    assert [m["step"] for m in read_metrics(run_dir)] == [1, 2, 3]


REPORT = {
    "table": {"columns": ["choice", "fill"], "rows": [["loader, mffd", 0.98], ["none", None]]},
    "curves": {
        "val": {
            "real_tokens": [
                {"choice": "loader, mffd", "x": [0, 10], "mean": [5.5, 4.5]},
                {"choice": "none", "x": [0, 20, 30], "mean": [5.5, 4.0, 3.5]},
            ],
            "steps": [],
        },
        "alone": [{"x": 1, "y": 2.0}, {"x": 2, "y": 1.0}],
    },
}


def test_a_comparison_is_a_run_of_the_sweeps_group(tmp_path: Path, home: Path) -> None:
    sweep = tmp_path / "12-00-00.5"
    sweep.mkdir()
    (sweep / "sweep.json").write_text("{}", encoding="utf-8")
    log_comparison(REPORT, sweep, WandbLogger(project="mine"))
    written = only(sweep)
    assert (written.project, written.group, written.job_type) == ("mine", "12-00-00.5", "report")
    assert written.exit_code == 0
    tables = {}
    for path in sweep.glob("wandb/offline-run-*/files/media/table/**/*.table.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        tables[str(path.relative_to(path.parents[0])).split("_")[0]] = content
    assert tables["comparison"] == {
        "columns": ["choice", "fill"], "data": [["loader, mffd", 0.98], ["none", None]]
    }  # fmt: skip
    assert [row[1:] for row in tables["real"]["data"]] == [
        ["loader, mffd", 5.5], ["loader, mffd", 4.5], ["none", 5.5], ["none", 4.0], ["none", 3.5]
    ]  # fmt: skip
    assert [row[0] for row in tables["real"]["data"]] == [0, 10, 0, 20, 30]
    assert tables["alone"]["data"] == [[1, "alone", 2.0], [2, "alone", 1.0]]
    assert len(tables) == 3
    assert not [p for p in home.rglob("*") if p.is_file()]


def test_a_comparison_that_cannot_be_logged_is_a_failed_run(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        log_comparison({"curves": {}}, tmp_path, WandbLogger())
    assert only(tmp_path).exit_code == 1


def test_the_logger_of_a_run_is_known_from_its_record() -> None:
    from sft.record import plain

    wandb = WandbLogger(mode=WandbMode.ONLINE, project="mine", entity="we")
    for loggers, expected in (
        ({"jsonl": JsonlLogger(), "anything": wandb}, wandb),
        ({"jsonl": JsonlLogger()}, None),
    ):
        description = {"config": {"logger": json.loads(json.dumps(plain(loggers)))}}
        assert logger_of(description) == expected
    assert logger_of({}) is None


# ---- TensorBoard


def read_tensorboard(run_dir: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    return events


def curve(events: Any, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_has_the_curves_the_settings_and_the_summary(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams.metadata import parse_session_start_info_plugin_data

    run_dir = make_run(tmp_path / "run")
    assert log_run(run_dir, {"tensorboard": TensorBoardLogger()}) == []
    events = read_tensorboard(run_dir)
    assert curve(events, "train/loss") == [(1, 4.0), (2, 3.0), (3, 2.0)]
    assert curve(events, "val/loss") == [(0, 5.5)]
    assert curve(events, "train/total_real_tokens") == [(1, 100.0), (2, 200.0), (3, 300.0)]
    assert curve(events, "val/wall_seconds") == [(0, 0.5)]
    assert curve(events, "summary/final_loss") == [(3, 2.0)]
    # What is not known, and what is no number, is no curve.
    assert not {"train/mfu", "summary/rows", "train/event"} & set(events.Tags()["scalars"])
    texts = {
        tag.removesuffix("/text_summary"): events.Tensors(tag)[0].tensor_proto.string_val[0]
        for tag in events.Tags()["tensors"]
        if tag.endswith("/text_summary")
    }
    assert json.loads(texts["run.json"]) == RUN
    assert json.loads(texts["summary.json"]) == SUMMARY
    start = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    settings = parse_session_start_info_plugin_data(start).hparams
    assert settings["packing.mode"].string_value == "loader"
    assert settings["seed"].number_value == 7


def test_tensorboard_of_a_failed_run_has_its_curves(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    with pytest.raises(TrainingError):
        log_run(run_dir, {"tensorboard": TensorBoardLogger()}, fails=True)
    events = read_tensorboard(run_dir)
    assert curve(events, "train/loss") == [(1, 4.0), (2, 3.0), (3, 2.0)]
    assert "summary/final_loss" not in events.Tags()["scalars"]


# ---- what fails


@dataclass(frozen=True, kw_only=True)
class Broken(MetricLogger):
    """Fails where it is told to."""

    at: str
    calls: list[str]

    def open(self, run_dir: Path) -> MetricSink:
        self.call("open")
        return _BrokenSink(self)

    def call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.at:
            raise OSError(f"broken\nin {name}")


class _BrokenSink:
    def __init__(self, settings: Broken) -> None:
        self.settings = settings

    def log(self, metrics: Metrics) -> None:
        self.settings.call("log")

    def close(self, summary: Mapping[str, Any] | None) -> None:
        self.settings.call("close" if summary else "close as failed")


@pytest.mark.parametrize(
    ("at", "calls"),
    [
        ("open", ["open"]),
        ("log", ["open", "log", "close as failed"]),
        ("close", ["open", "log", "log", "log", "log", "close"]),
        ("nowhere", ["open", "log", "log", "log", "log", "close"]),
    ],
)
def test_a_logger_that_breaks_is_given_up_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at: str, calls: list[str]
) -> None:
    run_dir = make_run(tmp_path / "run")
    broken, sound = Broken(at=at, calls=[]), Broken(at="nowhere", calls=[])
    said = log_run(run_dir, {"first": broken, "jsonl": JsonlLogger(), "last": sound})
    assert broken.calls == calls
    assert sound.calls == ["open", "log", "log", "log", "log", "close"]
    assert [m["step"] for m in read_metrics(run_dir)] == [1, 2, 3]
    if at == "nowhere":
        assert said == [] and caplog.records == []
        return
    assert said == [f"logger first is given up, the run goes on without it: broken in {at}"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.exc_info  # train.log has the stack trace


def test_a_run_that_fails_closes_every_logger_and_fails_as_it_did(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    broken = Broken(at="close as failed", calls=[])
    sound = Broken(at="nowhere", calls=[])
    with pytest.raises(TrainingError, match="loss is nan"):
        log_run(run_dir, {"first": broken, "last": sound}, fails=True)
    assert broken.calls[-1] == sound.calls[-1] == "close as failed"
    assert [m["step"] for m in read_metrics(run_dir)] == [1, 2, 3]


@pytest.mark.parametrize("extra", ["wandb", "tensorboard"])
def test_a_package_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] == extra or "utils.tensorboard" in m]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, extra, None)  # importing it raises ModuleNotFoundError
    run_dir = make_run(tmp_path / "run")
    loggers = {"wandb": WandbLogger(), "tensorboard": TensorBoardLogger()}
    assert log_run(run_dir, {extra: loggers[extra]}) == [
        f"logger {extra} is given up, the run goes on without it: the package {extra} is missing: "
        f"pip install 'stowage[{extra}]'"
    ]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing past that size fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_record_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    mirror = Broken(at="nowhere", calls=[])
    told = r"metrics\.jsonl: cannot be written \(File too large\)\. It is the record of the run"
    with files_of_at_most(200), pytest.raises(TrainingError, match=told):
        log_run(run_dir, {"mirror": mirror})
    assert mirror.calls == ["open", "log", "close as failed"]
    with pytest.raises(TrainingError, match=r"metrics\.jsonl: cannot be written \(File exists\)"):
        log_run(run_dir, {})


# ---- composed


def test_only_the_first_process_writes(tmp_path: Path) -> None:
    loggers = {"jsonl": JsonlLogger(), "wandb": WandbLogger(), "tensorboard": TensorBoardLogger()}
    run_dir = make_run(tmp_path / "run")
    assert log_run(run_dir, loggers, writes=False) == []
    assert {p.name for p in run_dir.iterdir()} == {"run.json"}
    assert log_run(run_dir, loggers) == []
    assert len(read_wandb(run_dir)) == 1
    assert len(list(run_dir.glob("tensorboard/events.*"))) == 1
    assert [m["step"] for m in read_metrics(run_dir)] == [1, 2, 3]


@pytest.mark.parametrize("given", ["wandb", "[wandb]", "[wandb,jsonl]", "[jsonl,tensorboard]"])
def test_the_record_is_always_first(tmp_path: Path, given: str) -> None:
    with initialize_config_dir(CONF_DIR, version_base="1.3"):
        config = resolve(compose("config", [f"logger={given}", "run_dir=runs/test"]))
    assert set(config.logger) == set(given.strip("[]").split(","))
    order: list[str] = []
    run_dir = make_run(tmp_path / "run")

    class Last(Broken):
        def call(self, name: str) -> None:
            order.append(f"{name} after {len(read_metrics(run_dir))}")

    mirrors = {name: Last(at="", calls=[]) for name in config.logger if name != "jsonl"}
    log_run(run_dir, mirrors, TRAIN[:2])
    assert order == ["open after 0", "log after 1", "log after 2", "close after 2"]


def test_settings_of_the_loggers() -> None:
    with initialize_config_dir(CONF_DIR, version_base="1.3"):
        tree = compose("config", ["logger=[wandb]", "logger.wandb.mode=online", "run_dir=r"])
        wrong = compose("config", ["logger=[wandb]", "logger.wandb.mode=on", "run_dir=r"])
        name = compose("config", ["logger=wandb", "logger.wandb.project=a/b", "run_dir=r"])
    assert resolve(tree).logger == {"wandb": WandbLogger(mode=WandbMode.ONLINE)}
    with pytest.raises(ConfigError, match=r"logger\.wandb\.mode=on: must be one of offline, onl"):
        resolve(wrong)
    with pytest.raises(ConfigError, match=r"^logger\.wandb\.project=a/b: must have 1 to 128 char"):
        resolve(name)


def test_the_logger_that_contributing_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(# sft/loggers/curve\.py\n.*?)```", page, re.DOTALL)
    file = re.search(r"```yaml\n(# conf/logger/curve\.yaml.*?)```", page, re.DOTALL)
    assert code and file
    module = types.ModuleType("sft.loggers.curve")
    monkeypatch.setitem(sys.modules, "sft.loggers.curve", module)
    exec(code[1], vars(module))
    for name, node in yaml.safe_load(file[1]).items():
        logger = component(node, MetricLogger, f"logger.{name}")
    assert log_run(make_run(tmp_path / "run"), {"curve": logger}) == []
    assert (tmp_path / "run" / "curve.txt").read_text() == "1 4.0\n2 3.0\n3 2.0\n"


def test_names_are_those_of_the_event() -> None:
    assert by_event(TRAIN[0]) == {
        "step": 1, "train/loss": 4.0, "train/lr": 1e-3, "total_real_tokens": 100,
        "wall_seconds": 1.0,
    }  # fmt: skip


@pytest.mark.slow
def test_all_loggers_of_a_whole_run(
    tmp_path: Path, write_chats: Callable[..., Path], home: Path
) -> None:
    run_dir = tmp_path / "run"
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "train.py"), "logger=[jsonl,wandb,tensorboard]",
            "data=jsonl", f"data.path={write_chats([20, 30, 40, 50, 60, 70])}",
            "data.val_fraction=0.3", "packing.capacity=128", "train.global_batch_tokens=128",
            "train.steps=2", "train.eval_every=1", f"run_dir={run_dir}",
        ],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "is given up" not in done.stdout
    train, val = read_metrics(run_dir), read_metrics(run_dir, "val")
    assert [m["step"] for m in train] == [1, 2]
    assert [m["step"] for m in val] == [0, 1, 2]
    written = only(run_dir)
    rows = {row["step"]: row for row in written.history}
    assert {s: row["train/loss"] for s, row in rows.items() if s} == {
        m["step"]: m["loss"] for m in train
    }
    assert {s: row["val/loss"] for s, row in rows.items()} == {
        m["step"]: m["val_loss"] for m in val
    }
    run = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    assert {k: v for k, v in written.config.items() if k in run} == run
    assert written.exit_code == 0
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    assert written.summary["real_tokens"] == summary["real_tokens"]
    losses = curve(read_tensorboard(run_dir), "train/loss")
    assert [step for step, _ in losses] == [1, 2]
    assert [loss for _, loss in losses] == pytest.approx([m["loss"] for m in train], rel=1e-6)
    assert not [p for p in home.rglob("*") if p.is_file() and "wandb" in str(p)]
