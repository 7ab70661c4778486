"""Which jobs a sweep has, in what order, what their directories are called, and ``sweep.json``."""

from __future__ import annotations

import itertools
import json
import os
from functools import partial
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from data.packing.settings import PackingMode
from sft.errors import ConfigError
from sft.sweep.jobs import Job, interleave, key_of, plan_jobs
from sft.sweep.names import differences, safe_name, safe_path, told_apart
from sft.sweep.outcome import Outcome, last_words
from sft.sweep.record import JobRecord, SweepRecord, claim_sweep_dir
from sft.sweep.run import closing_table, complete_log, run_jobs
from tests.conftest import CONF_DIR


def product(**choices: str) -> list[Job]:
    """All combinations: ``a__b`` is the key ``a.b``."""
    lists = [
        [f"{key.replace('__', '.')}={value}" for value in values.split(",")]
        for key, values in choices.items()
    ]
    return list(itertools.product(*lists))


def mode_of(job: Job) -> PackingMode | None:
    chosen = [w.partition("=")[2] for w in job if key_of(w) in ("packing", "packing.mode")]
    return PackingMode(chosen[-1]) if chosen else PackingMode.LOADER


# --- which jobs


def test_the_baseline_runs_once_and_not_once_per_packer() -> None:
    plan = plan_jobs(product(packer="ffd,mffd", packing="none,trainer", seed="1"), mode_of)
    assert plan.jobs == [
        ("packing=none", "seed=1"),
        ("packer=ffd", "packing=trainer", "seed=1"),
        ("packer=mffd", "packing=trainer", "seed=1"),
    ]
    assert plan.notes == [
        "packer changes nothing with packing=none and is left out there",
        "3 of 4 combinations remain",
    ]


def test_each_who_packs_has_the_settings_that_matter_for_it() -> None:
    choices = product(
        packing="none,trainer,loader",
        packer__delta="1,5",
        packing__kernel_boundaries="real,padded",
        packing__buffer_size="64,128",
        train__micro_batch_size="1,4",
        packing__capacity="512,1024",  # matters for all
    )
    plan = plan_jobs(choices, mode_of)
    count = {m: sum(f"packing={m}" in job for job in plan.jobs) for m in ("none", "trainer")}
    assert count == {"none": 2 * 2, "trainer": 2 * 2 * 2}
    assert len(plan.jobs) == 4 + 8 + 2 * 2 * 2 * 2
    assert len(set(plan.jobs)) == len(plan.jobs)
    assert (
        "train.micro_batch_size changes nothing with packing=loader or trainer and is left out"
        in ("\n".join(plan.notes))
    )


def test_what_matters_for_no_job_is_left_to_be_refused() -> None:
    jobs = product(packing__mode="trainer", train__micro_batch_size="1,4")
    plan = plan_jobs(jobs, mode_of)
    assert (plan.jobs, plan.notes) == (jobs, [])
    # Unless nobody asked for it.
    plan = plan_jobs(jobs, mode_of, offered={"train.micro_batch_size"})
    assert plan.jobs == [("packing.mode=trainer",)]


def test_a_job_that_was_asked_for_twice_runs_twice() -> None:
    jobs = product(packing="trainer", seed="1,1")
    assert plan_jobs(jobs, mode_of).jobs == jobs


def test_choices_that_do_not_exist_stay_for_hydra_to_refuse() -> None:
    jobs = product(packing="nonee", packer="ffd,mffd")
    assert plan_jobs(jobs, lambda job: None).jobs == jobs


@pytest.mark.parametrize("order", [("seed", "packer"), ("packer", "seed")])
def test_seeds_take_turns_whatever_the_order(order: tuple[str, str]) -> None:
    choices = {"seed": "7,3,5", "packer": "ffd,mffd,tight"}
    ordered = interleave(product(**{key: choices[key] for key in order}))
    seeds = [next(w for w in job if key_of(w) == "seed") for job in ordered]
    assert seeds == ["seed=7"] * 3 + ["seed=3"] * 3 + ["seed=5"] * 3
    packers = [next(w for w in job if key_of(w) == "packer") for job in ordered]
    forth = ["packer=ffd", "packer=mffd", "packer=tight"]
    # Back and forth: over two seeds every packer runs at the same time on average.
    assert packers == [*forth, *reversed(forth), *forth]
    for packer in forth:
        assert sum(i for i in range(6) if packers[i] == packer) == 5


def test_compare_has_everything_and_three_seeds() -> None:
    with initialize_config_dir(CONF_DIR, version_base="1.3"):
        for name in ("compare", "compare_quick"):
            tree = compose("config", [f"experiment={name}"], return_hydra_config=True)
            params = OmegaConf.to_container(tree.hydra.sweeper.params)
            assert params["packing"] == "none,trainer,loader"
            assert params["train.micro_batch_size"] == "1,4"
            assert tree.hydra.mode.name == "MULTIRUN"
            if name == "compare":
                assert (params["packer"], params["seed"]) == ("glob(*)", "1,2,3")
        assert compose("config", [], return_hydra_config=True).hydra.sweeper.params == {}


# --- what directories are called


def test_names_say_what_differs() -> None:
    jobs = [
        ("packing=trainer", "packer=mffd", "seed=1", "data.path=/a/b"),
        ("packing=trainer", "packer=ffd", "seed=1", "data.path=/a/c"),
        ("packing=none", "seed=1", "data.path=/a/b"),
    ]
    assert differences(jobs, ["data.path"]) == [
        "packer=mffd,packing=trainer",
        "packer=ffd,packing=trainer",
        "packing=none",
    ]
    assert differences([("b=1", "a=2")], []) == ["a=2,b=1"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("packer=ffd,seed=1", "packer=ffd,seed=1"),
        ("data.path=/a/b c", "data.path=_a_b_c"),
        ("betas=[1, 2]", "betas=_1,_2"),
        ("x='$HOME\n\0'", "x=_HOME"),
        ("", "job"),
        ("..", "job"),
        ("name=größe", "name=größe"),
    ],
)
def test_names_are_names(text: str, name: str, tmp_path: Path) -> None:
    assert safe_name(text) == name
    (tmp_path / safe_name(text)).mkdir()
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_long_names_are_cut_and_stay_apart(tmp_path: Path) -> None:
    long = [",".join(f"key{i}=größe" for i in range(60)) + f",z={z}" for z in (1, 2)]
    names = [safe_name(text) for text in long]
    assert names[0] != names[1]
    for text, name in zip(long, names, strict=True):
        assert name.startswith("key0=größe,key1=größe,")
        assert len(name.encode()) <= 150 < len(text.encode())
        (tmp_path / name).mkdir()


def test_a_path_leads_nowhere_else() -> None:
    assert safe_path("trainer/seed 1") == "trainer/seed_1"
    assert safe_path("/../../etc") == "etc"
    assert safe_path("") == "job"


def test_equal_names_are_told_apart() -> None:
    taken: set[str] = set()
    assert [told_apart(n, taken) for n in ("a", "a", "A", "a-2")] == ["a", "a-2", "A-3", "a-2-2"]


# --- the directory of a sweep


def test_two_sweeps_of_the_same_moment_have_two_directories(tmp_path: Path) -> None:
    wanted = tmp_path / "day" / "12-00-00"
    got = [claim_sweep_dir(wanted, renamed=True) for _ in range(3)]
    assert [d.name for d in got] == ["12-00-00", "12-00-00-2", "12-00-00-3"]
    assert all(json.loads((d / "sweep.json").read_text("utf-8")) == {"jobs": []} for d in got)


@pytest.mark.parametrize("holds", ["sweep.json", "multirun.yaml", "run.json", "seed=1/run.json"])
def test_a_directory_with_results_is_refused(tmp_path: Path, holds: str) -> None:
    (tmp_path / holds).parent.mkdir(exist_ok=True)
    (tmp_path / holds).write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        claim_sweep_dir(tmp_path, renamed=False)
    assert str(caught.value) == (
        f"hydra.sweep.dir={tmp_path}: already holds a sweep or a run; choose another directory or "
        "remove it"
    )
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / holds]


def test_a_directory_of_the_users_is_taken_and_a_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    assert claim_sweep_dir(tmp_path, renamed=False) == tmp_path
    with pytest.raises(ConfigError, match=r"notes\.txt: is a file; name a directory"):
        claim_sweep_dir(tmp_path / "notes.txt", renamed=False)
    with pytest.raises(ConfigError, match=r"cannot be written \(Not a directory\)"):
        claim_sweep_dir(tmp_path / "notes.txt" / "below", renamed=False)


# --- running and recording


def record_of(directory: Path, *words: str) -> SweepRecord:
    jobs = [JobRecord(name=w, overrides=[w], order=i) for i, w in enumerate(words, start=1)]
    return SweepRecord(directory=directory, command=["x"], launcher="processes", jobs=jobs)


def read_sweep(directory: Path) -> dict[str, dict[str, object]]:
    content = json.loads((directory / "sweep.json").read_text("utf-8"))
    return {job["name"]: job for job in content["jobs"]}


def test_the_file_is_right_while_a_sweep_goes_on(tmp_path: Path) -> None:
    record = record_of(tmp_path, "a=1", "a=2")
    seen = []

    def start(job: JobRecord) -> Outcome:
        seen.append({name: j["status"] for name, j in read_sweep(tmp_path).items()})
        return Outcome(exit_code=0)

    run_jobs(record, record.jobs, start, fail_fast=False, log_name="train.log")
    # A job that runs has failed until it is done: it would have, if all ended here.
    assert seen == [
        {"a=1": "failed", "a=2": "not started"},
        {"a=1": "done", "a=2": "failed"},
    ]
    assert {j["status"] for j in read_sweep(tmp_path).values()} == {"done"}
    assert [p.name for p in tmp_path.iterdir()] == ["sweep.json"]
    content = json.loads((tmp_path / "sweep.json").read_text("utf-8"))
    assert content["started_at"] <= content["finished_at"]
    assert "+" in content["started_at"] or "-" in content["started_at"][10:]


@pytest.mark.parametrize(
    ("fail_fast", "statuses"),
    [(False, ["failed", "done", "done"]), (True, ["failed", "not started", "not started"])],
)
def test_a_failing_job_stops_the_others_on_request(
    tmp_path: Path, fail_fast: bool, statuses: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    record = record_of(tmp_path, "a=1", "a=2", "a=3")

    def start(job: JobRecord) -> Outcome:
        failed = job.order == 1
        return Outcome(exit_code=int(failed), error="it broke" if failed else None)

    run_jobs(record, record.jobs, start, fail_fast=fail_fast, log_name="train.log")
    jobs = list(read_sweep(tmp_path).values())
    assert [job["status"] for job in jobs] == statuses
    assert (jobs[0]["exit_code"], jobs[0]["error"]) == (1, "it broke")
    assert jobs[2]["exit_code"] == (None if fail_fast else 0)
    assert (tmp_path / "a=1" / "train.log").read_text("utf-8") == "it broke\n"
    out = capsys.readouterr().out
    assert "=== job 1 of 3: a=1\n=== job 1 of 3: failed: it broke, " in out
    table = list(closing_table(record))
    count = "1 failed, 2 not started" if fail_fast else "2 done, 1 failed"
    assert table[0].startswith(f"sweep of 3 jobs: {count}, ")
    assert table[2].strip() == "it broke"
    assert table[-1] == f"results: {tmp_path}"


def test_an_interrupted_sweep_says_so(tmp_path: Path) -> None:
    record = record_of(tmp_path, "a=1", "a=2")

    def start(job: JobRecord) -> Outcome:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(record, record.jobs, start, fail_fast=False, log_name="train.log")
    first, second = read_sweep(tmp_path).values()
    assert (first["status"], first["exit_code"], first["error"]) == ("failed", 130, "interrupted")
    assert (second["status"], second["exit_code"]) == ("not started", None)
    assert record.finished_at is not None


def test_a_long_sweep_says_how_long_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = record_of(tmp_path, "a=1", "a=2", "a=3", "a=4")
    for job, seconds in zip(record.jobs, (50.0, 70.0), strict=False):
        job.wall_seconds = seconds
    run = partial(run_jobs, record, start=lambda job: Outcome(exit_code=0), fail_fast=False)
    run(jobs=record.jobs[2:3], log_name="train.log")
    assert "=== job 3 of 4, about 2 min left: a=3\n" in capsys.readouterr().out
    run(jobs=record.jobs[3:], log_name="train.log")
    assert "=== job 4 of 4: a=4\n" in capsys.readouterr().out


def test_a_log_is_completed_only_where_it_does_not_say_why(tmp_path: Path) -> None:
    log = tmp_path / "job" / "train.log"
    killed = Outcome(exit_code=137, error="killed by signal 9 (SIGKILL)", said="a warning\n")
    complete_log(log, killed)
    assert log.read_text("utf-8") == "a warning\nkilled by signal 9 (SIGKILL)\n"
    complete_log(log, killed)
    assert log.read_text("utf-8").count("SIGKILL") == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        ("one\ntwo\n\n", "two"),
        ("stowage: a=1: must be 2\nsome library: leaked\n", "a=1: must be 2"),
        (
            "Traceback (most recent call last):\n  File x\nKeyError: 1\n\nDuring handling:\n\n"
            "Traceback (most recent call last):\n  File y\nValueError: two\nlines\nleaked\n",
            "ValueError: two",
        ),
    ],
)
def test_last_words(text: str, line: str | None) -> None:
    assert last_words(text) == line


def test_the_file_is_replaced_and_never_half_written(tmp_path: Path) -> None:
    record = record_of(tmp_path, "a=1")
    record.write()
    os.link(tmp_path / "sweep.json", tmp_path / "before")
    record.jobs[0].status = "done"
    record.write()
    assert json.loads((tmp_path / "before").read_text("utf-8"))["jobs"][0]["status"] == (
        "not started"
    )
    assert read_sweep(tmp_path)["a=1"]["status"] == "done"
