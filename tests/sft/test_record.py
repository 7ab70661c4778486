"""What a run leaves: one run in a directory, whole files, and settings that can be read again."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from data.sources.jsonl import JsonlSource
from sft.config import resolve
from sft.errors import ConfigError
from sft.files import write_json
from sft.record import claim_run_dir, describe_run, plain
from tests.sft.test_config import changed, composed


def test_a_directory_is_claimed_once(tmp_path: Path) -> None:
    run_dir = tmp_path / "a" / "b"
    claim_run_dir(run_dir)
    assert [path.name for path in run_dir.iterdir()] == ["run.json"]
    (run_dir / "run.json").write_text("mine", encoding="utf-8")
    told = (
        f"run_dir={run_dir}: already holds a run; choose another directory or remove it, or use "
        "resume=auto to go on with it"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}$"):
        claim_run_dir(run_dir)
    assert (run_dir / "run.json").read_text(encoding="utf-8") == "mine"


def test_an_empty_directory_can_be_claimed(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    claim_run_dir(tmp_path)
    assert (tmp_path / "run.json").exists()


def test_of_two_that_claim_at_once_one_is_refused(tmp_path: Path) -> None:
    barrier, outcomes = threading.Barrier(8), []

    def claim() -> None:
        barrier.wait()
        try:
            claim_run_dir(tmp_path / "run")
            outcomes.append("claimed")
        except ConfigError:
            outcomes.append("refused")

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["claimed"] + ["refused"] * 7


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text", encoding="utf-8")
    where = tmp_path / "file" / "run"
    told = f"run_dir={where}: cannot be written (Not a directory)"
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}$"):
        claim_run_dir(where)


def test_json_files(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"a": [1, None, 0.5], "b": {"c": "ü"}})
    assert json.loads(path.read_bytes()) == {"a": [1, None, 0.5], "b": {"c": "ü"}}
    write_json(path, {"a": 2})
    assert path.read_text(encoding="utf-8") == '{\n  "a": 2\n}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


@pytest.mark.parametrize("content", [{"a": float("nan")}, {"a": float("inf")}, {"a": object()}])
def test_content_that_is_no_json_leaves_the_old_file(tmp_path: Path, content: object) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})
    with pytest.raises((ValueError, TypeError)):
        write_json(path, content)  # type: ignore[arg-type]
    assert path.read_text(encoding="utf-8") == '{\n  "a": 1\n}\n'


def test_a_write_that_stops_half_way_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})
    whole = Path.write_text

    def half(self: Path, data: str, **how: str) -> int:
        whole(self, data[:3], **how)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(OSError, match="No space left"):
            write_json(path, {"a": 2})
    assert path.read_text(encoding="utf-8") == '{\n  "a": 1\n}\n'


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("packing=trainer", "packing.kernel_boundaries=padded", "packer=ffs", "loss.average=sample",
         "data.overlong=drop", "schedule=constant", "attention=torch"),
        ("packing=none", "train.micro_batch_size=2", "model=llama3_1_8b", "data=jsonl",
         "data.path=chats.jsonl", "packer=balanced_greedy_knapsack", "schedule=linear",
         "train.steps=null", "train.epochs=3"),
    ],
    ids=["defaults", "trainer", "none"],
)  # fmt: skip
def test_settings_can_be_read_back(overrides: tuple[str, ...]) -> None:
    config = resolve(composed(*overrides))
    tree = plain(config)
    text = json.dumps(tree, allow_nan=False)
    assert resolve(OmegaConf.create(json.loads(text))) == config


def test_settings_are_plain() -> None:
    tree = plain(resolve(changed("packing.kernel_boundaries=real")))
    assert tree["packing"]["mode"] == "loader"
    assert tree["packing"]["kernel_boundaries"] == "real"
    assert tree["packing"]["pad_multiple"] is None
    assert tree["loss"]["average"] == "token"
    assert tree["data"]["overlong"] == "truncate"
    assert tree["run_dir"] == "runs/test"
    assert tree["packer"] == {
        "_target_": "data.packers.mffd.ModifiedFirstFitDecreasing",
        "max_samples_per_bin": None,
        "min_bins": None,
        "bins_multiple": None,
    }
    assert tree["logger"] == {"jsonl": {"_target_": "sft.loggers.jsonl.JsonlLogger"}}


def test_run_json(monkeypatch: pytest.MonkeyPatch, write_chats: Callable[..., Path]) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/train.py", "seed=7"])
    config = resolve(changed("seed=7"))
    data = JsonlSource(path=str(write_chats([3, 4])), val_fraction=0).prepare()
    started = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1)))
    described = describe_run(config, "torch (no CUDA device)", data, started)
    content = json.loads(json.dumps(described))
    assert content["started_at"] == "2026-01-02T03:04:05+01:00"
    assert content["tokenizer"] == "bytes"
    assert content["data"]["train"]["conversations"] == 2
    assert content["data"]["val"]["conversations"] == 0
    assert re.fullmatch("[0-9a-f]{32}", content["data"]["train"]["fingerprint"])
    assert content["config"] == plain(config)
    assert content["command"] == ["train.py", "seed=7"]
    assert content["kernels"] == "torch (no CUDA device)"
    assert {"python", "torch", "megatron-core", "megatron-energon"} <= set(content["versions"])
    assert content["hardware"]["cpu_cores"] >= 1


def test_data_is_named_by_its_contents(write_chats: Callable[..., Path]) -> None:
    config, now = resolve(changed()), datetime.now().astimezone()
    described = []
    for answers, name, fraction in (
        ([5, 6, 7, 8], "a.jsonl", 0.0),
        ([5, 6, 7, 8], "b.jsonl", 0.0),
        ([5, 6, 7, 9], "c.jsonl", 0.0),
        ([5, 6, 7, 8], "d.jsonl", 0.25),
    ):
        source = JsonlSource(path=str(write_chats(answers, name=name)), val_fraction=fraction)
        described.append(describe_run(config, "torch", source.prepare(), now)["data"])
    assert described[0] == described[1]
    assert described[3]["train"]["conversations"] == 3
    assert described[3]["val"]["conversations"] == 1
    assert len({d["train"]["fingerprint"] for d in described}) == 3


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="is a file; name a directory"):
        claim_run_dir(tmp_path / "taken")
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"
