"""The preview's command line: combinations, what it leaves, and mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sft.preview.cli import choices_of, main
from sft.preview.preview import preview
from tests.conftest import CONF_DIR


def test_every_combination_once() -> None:
    names = [c.name for c in choices_of(["packing=none,loader,trainer", "packer=ffd,mffd"])]
    assert names == ["none", "loader ffd", "loader mffd", "trainer ffd", "trainer mffd"]
    choices = choices_of(["packer=ffd,mffd", "packing=loader,trainer", "packer.min_bins=3"])
    assert [(c.packing, c.packer, c.config.packer.min_bins) for c in choices] == [
        (mode, packer, 3) for packer in ("ffd", "mffd") for mode in ("loader", "trainer")
    ]
    assert [c.name for c in choices_of(["packing.capacity=1024,2048", "packer=bfd"])] == [
        "loader bfd packing.capacity=1024",
        "loader bfd packing.capacity=2048",
    ]
    every = {c.packer for c in choices_of(["packer=glob(*)"])}
    assert every == {p.stem for p in Path(CONF_DIR, "packer").glob("*.yaml")}


def test_choices_are_what_each_alone_would_be() -> None:
    words = ["packer.min_bins=3", "model=small"]
    together = choices_of(["packing=loader,trainer", "packer=ffd,tight", *words])
    assert len(together) == 4
    for choice in together:
        (alone,) = choices_of([f"packing={choice.packing}", f"packer={choice.packer}", *words])
        assert alone.config == choice.config


def test_options_of_one_s_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "packer").mkdir()
    (tmp_path / "packer" / "mine.yaml").write_text(
        "_target_: data.packers.ffd.FirstFitDecreasing\nmax_samples_per_bin: 7\n"
    )
    choices = choices_of(["packing=loader,trainer", "packer=mine,bfd"], tmp_path)
    assert [(c.packing, c.config.packer.max_samples_per_bin) for c in choices] == [
        ("loader", 7), ("loader", None), ("trainer", 7), ("trainer", None)
    ]  # fmt: skip
    assert capfd.readouterr().err == "" and not recwarn.list


def test_what_it_leaves(
    write_lengths: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write_lengths([30, 40, 50, 60, 200] * 20), tmp_path / "out"
    words = ["packing=none,loader", "packer=first_fit_decreasing,tight", "packing.capacity=128",
             "train.global_batch_tokens=256", f"lengths={path}", "--output", str(out),
             "-m", "train.steps=100"]  # fmt: skip
    assert main(words) == 0
    content = json.loads((out / "preview.json").read_text(encoding="utf-8"))
    assert [c["name"] for c in content["choices"]] == ["none", "loader ffd", "loader tight"]
    (data,) = content["data"]
    assert data["accounting"]["truncated_samples"] == 20
    assert data["lengths"]["p50"] == 50
    assert sum(data["length_histogram"]["counts"]) == 100
    assert (out / "preview.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "loader tight" in printed and "…" not in printed
    assert "warning: 20% of the conversations are over packing.capacity=128" in printed
    assert "not a measurement" in printed
    assert {c["run_steps"] for c in content["choices"]} == {100}
    epochs = {round(100 / c["steps"], 2) for c in content["choices"]}
    assert f"A run of 100 steps is {min(epochs):.2f} to {max(epochs):.2f} epochs" in printed


def test_several_sets_of_lengths(write_lengths: Callable[..., Path], tmp_path: Path) -> None:
    choices = choices_of(["packing.capacity=64,128", "train.global_batch_tokens=128"])
    content = preview(
        choices, lengths_file=write_lengths([30, 100] * 9), output=tmp_path / "out", ranks=2
    )
    assert [d["accounting"]["real_tokens"] for d in content["data"]] == [9 * 94, 9 * 130]
    assert [c["data"] for c in content["choices"]] == [0, 1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["packer=ffdd"], "packer=ffdd: there is no such packer. Did you mean packer=ffd?"),
        (["packer=[ffd,mffd]"], "takes one option; to preview several: packer=ffd,mffd"),
        (["packing.capacty=3"], "packing.capacty=3: there is no such key. Did you mean"),
        (["packing=trainer", "packing.buffer_size=9"], "only the loader buffers samples"),
        (["ranks=0"], "ranks=0: must be a whole number, 1 or more"),
        (["ranks=two"], "ranks=two: must be a whole number, 1 or more"),
        (["seconds=0"], "seconds=0: must be a number above 0, or null"),
        (["--outptu=x"], "--outptu=x: there is no such key. Did you mean --output?"),
        (["--output"], "--output: must name a directory"),
        (["lengths=nowhere.npy"], "lengths=nowhere.npy: does not exist"),
        (["data=jsonl", "data.path=nowhere.jsonl"], "nowhere.jsonl does not exist"),
    ],
)
def test_a_mistake_is_one_message(
    words: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed = capsys.readouterr()
    assert told in printed.err
    assert printed.err.startswith("stowage: ") and "Traceback" not in printed.err
    assert not list(tmp_path.rglob("preview.json"))


def test_an_option_of_ones_own_that_is_no_yaml(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "experiment" / "bad.yaml"
    bad.parent.mkdir()
    bad.write_text("train: [\n", encoding="utf-8")
    assert main([f"--config-dir={tmp_path}", "experiment=bad"]) == 2
    assert capsys.readouterr().err.startswith(f"stowage: {bad}:2: is not YAML (")


def test_it_needs_no_torch(write_lengths: Callable[..., Path], tmp_path: Path) -> None:
    code = (
        "import sys; from sft.preview.cli import main; "
        f"assert main(['lengths={write_lengths([5, 6])}', '--output={tmp_path}']) == 0; "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
