"""A run that goes on from a checkpoint is the run that was not interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sft.errors import ConfigError, RunStopped
from sft.loop import Loop
from sft.stopping import Stop
from tests.conftest import read_metrics

RunApp = Callable[..., Any]

STEPS = 6
BASE = (
    "packing.capacity=256", "train.global_batch_tokens=1024", f"train.steps={STEPS}",
    "data.limit=300", "train.save_every=2", "train.eval_every=3",
)  # fmt: skip
MEASURED = ("seconds", "_per_s", "mfu")  # times, which no two runs share


def record(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [without_times(json.loads(line)) for line in lines]


def without_times(content: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in content.items() if not any(part in k for part in MEASURED)}


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def assert_same_run(run_dir: Path, whole: Path) -> None:
    assert record(run_dir) == record(whole)
    assert load(run_dir / "samples.json") == load(whole / "samples.json")
    got, want = (without_times(load(d / "summary.json")) for d in (run_dir, whole))
    for summary in (got, want):
        for name in ("timed_steps", "peak_memory_bytes"):
            del summary[name]
        del summary["step_time_shares"]
    assert got == want


MODES: dict[str, tuple[str, ...]] = {
    "none": ("packing=none",),
    "trainer": ("packing=trainer",),
    "loader": ("packing=loader",),
    "levelled": ("packing=loader", "packing.level_window=3", "packing.buffer_size=40"),
    "real tokens": (
        "packing=trainer", "train.global_batch_tokens=null", "train.global_batch_real_tokens=900",
    ),
    "lora": ("lora.rank=4", "lora.dropout=0.2", "packing=trainer"),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_goes_on_as_if_nothing_had_happened(run_app: RunApp, tmp_path: Path, mode: str) -> None:
    whole = run_app(*BASE, *MODES[mode]).run_dir
    for steps in (4,) if mode == "levelled" else (2,):
        # As it was when the run died: later lines in the record, one of them half-written.
        died = tmp_path / f"died{steps}"
        shutil.copytree(whole, died, symlinks=True)
        (died / "summary.json").unlink()
        for later in range(steps + 2, STEPS + 1, 2):
            shutil.rmtree(died / "checkpoints" / f"step-{later}")
        with (died / "metrics.jsonl").open("a") as file:
            file.write('{"event": "train", "st')
        run_app(*BASE, *MODES[mode], f"run_dir={died}", "resume.source=auto")
        assert_same_run(died, whole)
        assert load(died / "run.json")["resumed"][0]["after_step"] == steps


def test_a_run_goes_on_in_another_directory_and_with_workers(run_app: RunApp) -> None:
    whole = run_app(*BASE).run_dir
    source = whole / "checkpoints" / "step-4"
    other = run_app(*BASE, f"resume.source={source}", "data.num_workers=2").run_dir
    assert_same_run(other, whole)
    assert load(other / "run.json")["began_with"] == str(source)


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(
    run_app: RunApp, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = run_app(*BASE).run_dir
    before = record(run_dir)
    weights = next((run_dir / "checkpoints" / "step-6" / "weights").glob("*.distcp"))
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    capsys.readouterr()
    run_app(*BASE, f"run_dir={run_dir}", "resume.source=auto")
    said = capsys.readouterr().out
    assert "step-6: is damaged and not used" in said and "another checksum" in said
    assert record(run_dir) == before
    assert load(run_dir / "run.json")["resumed"][0]["after_step"] == 4


def test_a_finished_run_has_nothing_left_to_do(run_app: RunApp) -> None:
    run_dir = run_app(*BASE).run_dir
    before = record(run_dir)
    run_app(*BASE, f"run_dir={run_dir}", "resume.source=auto")
    assert record(run_dir) == before


def test_auto_begins_where_there_is_no_run(run_app: RunApp, tmp_path: Path) -> None:
    result = run_app(*BASE, f"run_dir={tmp_path / 'new'}", "resume.source=auto", "train.steps=1")
    assert [m["step"] for m in read_metrics(result.run_dir)] == [1]


def test_a_run_that_died_before_its_first_checkpoint_begins_anew(
    run_app: RunApp, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run_app(*BASE).run_dir
    before = record(whole)
    shutil.rmtree(whole / "checkpoints")
    run_app(*BASE, f"run_dir={whole}", "resume.source=auto")
    assert "holds no whole checkpoint, so the run starts anew" in capsys.readouterr().out
    assert record(whole) == before


@pytest.mark.parametrize(
    ("changes", "advice", "said"),
    [
        (["packing.capacity=128"], None, "packing.capacity was 256 and is 128"),
        (["packer=ffd"], None, "packer was ModifiedFirstFitDecreasing and is FirstFit"),
        (["seed=7"], None, "seed was 1234 and is 7"),
        (["data.limit=200"], None, "the number of training conversations was 285 and is 190"),
        (["data.loss_on=all"], None, "data.loss_on was assistant and is all"),
        (["packing.mode=trainer", "packer=ffd"], None, "packing.mode was loader"),
        (["train.global_batch_tokens=2048"], "batch", "train.global_batch_tokens was 1024"),
    ],
)
def test_another_run_is_refused_and_named(
    run_app: RunApp, finished: Path, changes: list[str], advice: str | None, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        run_app(*BASE, f"resume.source={finished}", *changes)
    assert said in str(caught.value)
    if advice is None:
        assert str(caught.value).endswith("Use the same")
    else:
        assert f"resume.allow=[{advice}]" in str(caught.value)


def test_the_loader_cannot_go_on_in_the_middle_of_another_buffer(
    run_app: RunApp, finished: Path
) -> None:
    words = f"resume.source={finished}", "packer=ffd", "resume.allow=[packer]"
    with pytest.raises(ConfigError, match=r"resume\.allow=\[packer\]: where the loader packs"):
        run_app(*BASE, *words)


def test_what_may_differ_is_said(run_app: RunApp, capsys: pytest.CaptureFixture[str]) -> None:
    base = (*BASE, "packing=trainer")
    whole = run_app(*base).run_dir
    source = f"resume.source={whole / 'checkpoints' / 'step-2'}"
    other = run_app(*base, source, "packer=ffd", "resume.allow=[packer]").run_dir
    said = "resume.allow: packer was ModifiedFirstFitDecreasing and is FirstFitDecreasing"
    assert said in capsys.readouterr().out
    # Which conversations make a step does not hang on the packer.
    steps = [[m["real_tokens"] for m in read_metrics(d)] for d in (whole, other)]
    assert steps[0] == steps[1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, chitchat_dir: Path) -> Path:
    """A run with a checkpoint, made once."""
    from hydra import compose, initialize_config_dir

    from sft.checks import check
    from sft.config import resolve
    from sft.run import run
    from tests.conftest import CONF_DIR, SMALL_MODEL

    run_dir = tmp_path_factory.mktemp("runs") / "finished"
    words = [*SMALL_MODEL, f"data.cache_dir={chitchat_dir}", f"run_dir={run_dir}", *BASE]
    with initialize_config_dir(CONF_DIR, version_base="1.3"):
        config = resolve(compose("config", [*words, "train.steps=2"]))
    run(config, check(config))
    return run_dir


def test_an_older_checkpoint_goes_on_elsewhere(run_app: RunApp) -> None:
    whole = run_app(*BASE).run_dir
    before = record(whole)
    older = whole / "checkpoints" / "step-2"
    with pytest.raises(ConfigError, match="choose another run_dir, or remove step-6, step-4"):
        run_app(*BASE, f"run_dir={whole}", f"resume.source={older}")
    assert record(whole) == before


@pytest.mark.parametrize("source", ["nowhere", "auto/checkpoints"])
def test_a_source_that_is_none(run_app: RunApp, source: str) -> None:
    with pytest.raises(ConfigError, match=f"resume.source={source}: is no directory"):
        run_app(*BASE, f"resume.source={source}")


def test_only_a_few_checkpoints_stay(run_app: RunApp) -> None:
    run_dir = run_app(*BASE, "train.keep_last=1").run_dir
    best = min(read_metrics(run_dir, "val")[1:], key=lambda m: m["val_loss"])["step"]
    there = {p.name for p in (run_dir / "checkpoints").iterdir()}
    assert there == {"latest", "step-6"} | ({f"step-{best}"} if best in (2, 4, 6) else set())
    assert (run_dir / "checkpoints" / "latest").resolve().name == "step-6"


def test_a_signal_saves_and_ends_the_run(
    run_app: RunApp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = run_app(*BASE).run_dir
    steps = Loop._step

    def step_and_signal(self: Loop, *args: Any) -> Any:
        done = steps(self, *args)
        if args[-1].steps == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        return done

    stopped = tmp_path / "stopped"
    monkeypatch.setattr(Loop, "_step", step_and_signal)
    with pytest.raises(RunStopped, match=r"SIGUSR1 after step 3 of 6.*resume=auto"):
        run_app(*BASE, f"run_dir={stopped}")
    monkeypatch.undo()
    assert (stopped / "checkpoints" / "latest").resolve().name == "step-3"
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    run_app(*BASE, f"run_dir={stopped}", "resume.source=auto")
    assert_same_run(stopped, whole)


def test_time_that_is_up(run_app: RunApp) -> None:
    with pytest.raises(RunStopped, match=r"train\.stop_after after step 1 of 6"):
        run_app(*BASE, "train.stop_after='00:00:01'")


def test_a_limit_leaves_time_for_a_step_and_a_checkpoint() -> None:
    stop = Stop(after_seconds=1000, started=None)
    assert stop.reason is None
    stop.took("step", 300)
    stop.took("save", 300)
    assert stop.reason is None  # 1000 - 300 - 2 * 300
    stop.took("save", 360)
    assert stop.reason == "train.stop_after"
