"""Runs that failed, that measured less, that are alone, twice or nameless."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sft.report import write_report
from tests.sft.report.helpers import BASE, pair, report, rows
from tests.sft.report.synthetic import Synthetic, write_run, write_sweep


def test_runs_of_older_versions_are_read(tmp_path: Path) -> None:
    content = report(pair(tmp_path, second={"new_metrics": False, "speed": 7800.0}))
    line = rows(content)["trainer + mffd"]
    assert line["attention_imbalance"] is None
    assert line["samples_per_microbatch"] == pytest.approx(7 / 4)
    assert line["seconds_to_loss"] > 0  # from the steps' and validations' own seconds
    assert [(f["what"], f["unfair"]) for f in content["findings"]] == [("data", False)]
    assert content["answer"]["fastest"] == "trainer + mffd"


def test_runs_without_validations(tmp_path: Path) -> None:
    change = {"eval_every": 0}
    content = report(pair(tmp_path, first=change, second=change), write=True)
    assert content["compared_at"] == {"real_tokens": None, "val_loss": None}
    assert content["curves"]["val"]["steps"] == []
    assert "not known" in content["answer"]["learning"]
    assert not (tmp_path / "validation_loss.png").exists()
    assert (tmp_path / "training_loss.png").exists()


def test_runs_without_a_timed_step(tmp_path: Path) -> None:
    change = {"skip_steps": 100}
    content = report(pair(tmp_path, first=change, second=change), write=True)
    assert rows(content)[BASE]["real_tokens_per_s"] is None
    assert "no speed was measured" in content["answer"]["speed"].lower()
    assert content["answer"]["same_loss"] is True


def test_one_run_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "only", Synthetic())
    content = report(tmp_path, write=True)
    assert "nothing to put it beside" in content["answer"]["speed"]
    assert content["answer"]["fastest"] == "trainer + mffd"


def test_only_failed_runs(tmp_path: Path) -> None:
    path = write_run(tmp_path / "cut", Synthetic(finished=False))
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "step": 2')  # killed while it wrote
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "run.json").touch()
    content = report(tmp_path, write=True)
    assert "no run finished" in content["answer"]["speed"].lower()
    reasons = {f["name"]: f["reason"] for f in content["failures"]}
    assert "left no summary.json" in reasons["cut"]
    assert "no settings" in reasons["empty"]


def test_jobs_that_left_nothing_are_named(tmp_path: Path) -> None:
    write_sweep(tmp_path, [("seed=1", Synthetic()), ("seed=2", Synthetic(seed=2))], {})
    shutil.rmtree(tmp_path / "seed=2")
    sweep = json.loads((tmp_path / "sweep.json").read_text())
    sweep["jobs"].append({"name": "seed=3", "status": "not started", "order": 2})
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    reasons = {f["name"]: f["reason"] for f in report(tmp_path)["failures"]}
    assert reasons == {"seed=2": "its directory holds no run any more", "seed=3": "not started"}


def test_the_last_line_of_a_traceback_is_the_reason(tmp_path: Path) -> None:
    path = write_run(tmp_path / "bad", Synthetic(finished=False))
    log = "2026 INFO start\nTraceback (most recent call last):\n  File\nValueError: no such thing\n"
    (path / "train.log").write_text(log)
    assert report(tmp_path)["failures"][0]["reason"] == "ValueError: no such thing"


def test_a_run_counts_once(tmp_path: Path) -> None:
    first = tmp_path / "first"
    pair(first, seeds=2)
    shutil.copytree(first / "none-1", tmp_path / "second" / "copy")
    write_report([first, first / "none-1", tmp_path / "second"], tmp_path / "out")
    content = json.loads((tmp_path / "out" / "report.json").read_text())
    assert rows(content)[BASE]["runs"] == 2
    assert len(content["notes"]) == 1 and "is the same run" in content["notes"][0]


def test_baselines_with_other_idle_packers_are_one_choice(tmp_path: Path) -> None:
    for seed, packer, size in ((1, "ffd", None), (2, "mffd", 4)):
        run = Synthetic(mode="none", packer=packer, seed=seed, micro_batch=size)
        write_run(tmp_path / packer, run)
    assert {c: line["runs"] for c, line in rows(report(tmp_path)).items()} == {
        "none (micro-batch 4)": 2
    }


def test_names_say_what_else_differs(tmp_path: Path) -> None:
    for size in (64, 256, None):
        run = Synthetic(mode="loader", overrides={"packing.buffer_size": size}, seed=size or 1)
        write_run(tmp_path / str(size), run)
    content = report(tmp_path)
    assert {c: line["runs"] for c, line in rows(content).items()} == {
        "loader + mffd buffer_size=64": 1,
        "loader + mffd buffer_size=256": 2,
    }
    assert content["differing_keys"] == ["packing.buffer_size"]
