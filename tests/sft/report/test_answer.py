"""The answer where the right one is known: planted differences, and noise alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.sft.report.helpers import BASE, NOISE, pair, report, rows
from tests.sft.report.synthetic import Synthetic, compare_sweep, write_run


def test_a_planted_difference_is_found(tmp_path: Path) -> None:
    content = report(pair(tmp_path, second={"speed": 7800.0}))
    answer = content["answer"]
    assert answer["fastest"] == "trainer + mffd"
    assert answer["equal"] == []
    assert answer["fair"] and answer["same_loss"]
    assert answer["speed"].startswith("trainer + mffd is fastest: ")
    line = rows(content)["trainer + mffd"]
    assert line["speed_beside_none"] == pytest.approx(1.3, rel=0.03)
    assert line["speed_beside_none_low"] < 1.3 < line["speed_beside_none_high"]
    assert line["speed_beside_none_low"] > 1
    assert line["place"] == "best"


def test_noise_is_no_difference(tmp_path: Path) -> None:
    content = report(pair(tmp_path))
    answer = content["answer"]
    assert "no difference in speed was found" in answer["speed"].lower()
    assert "fastest" not in answer["speed"]
    assert answer["equal"]


def test_one_run_each_is_never_better(tmp_path: Path) -> None:
    content = report(pair(tmp_path, seeds=1, second={"speed": 12000.0}))
    assert "one run each: no spread is known" in content["answer"]["speed"]
    assert "no spread is known" in content["answer"]["learning"]
    assert content["answer"]["same_loss"] is None
    assert {line["place"] for line in rows(content).values()} == {None}


def test_a_planted_difference_in_loss_is_found(tmp_path: Path) -> None:
    content = report(pair(tmp_path, second={"loss_shift": 0.3}))
    answer = content["answer"]
    assert answer["same_loss"] is False
    assert f"{BASE} has a validation loss 0.3" in answer["learning"].replace("0.29", "0.3")
    losses = {c: line["val_loss"] for c, line in rows(content).items()}
    assert losses["trainer + mffd"] - losses[BASE] == pytest.approx(0.3, abs=0.02)


def test_losses_are_compared_at_equal_real_tokens(tmp_path: Path) -> None:
    """One choice trains on for longer; at equal tokens it has learned as much."""
    for seed in (1, 2, 3):
        write_run(tmp_path / f"a{seed}", Synthetic(seed=seed, mode="none", micro_batch=1))
        write_run(tmp_path / f"b{seed}", Synthetic(seed=seed, steps=60))
    content = report(tmp_path)
    at = content["compared_at"]["real_tokens"]
    shortest = min(
        json.loads(line)["total_real_tokens"]
        for run in tmp_path.glob("a*")
        for line in (run / "metrics.jsonl").read_text().splitlines()[-1:]
    )
    assert at == shortest
    losses = [line["val_loss"] for line in rows(content).values()]
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)
    # It is no fair comparison all the same.
    assert not content["answer"]["fair"]
    assert [f["what"] for f in content["findings"]] == ["steps (train.steps)"]


def test_time_to_a_loss_is_on_the_line_between_validations(tmp_path: Path) -> None:
    pair(tmp_path, seeds=1, first={"speed": 4000.0, "loss_noise": 0.0, "speed_noise": 0.0})
    content = report(tmp_path)
    target = content["compared_at"]["val_loss"]
    for name, choice in (("none-1", BASE), ("packed-1", "trainer + mffd")):
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        vals = [r for r in map(json.loads, lines) if r["event"] == "val"]
        k = next(k for k, r in enumerate(vals) if r["val_loss"] <= target)
        above, below = vals[k - 1], vals[k]
        part = (above["val_loss"] - target) / (above["val_loss"] - below["val_loss"])
        seconds = above["wall_seconds"] + part * (below["wall_seconds"] - above["wall_seconds"])
        assert rows(content)[choice]["seconds_to_loss"] == pytest.approx(seconds)


def test_the_big_comparison(tmp_path: Path) -> None:
    failed = {"packer=ffs,packing=loader,seed=3": "TrainingError: the loss is not finite"}
    content = report(compare_sweep(tmp_path, failed=failed))
    table = rows(content)
    assert len(table) == 18
    assert content["baseline"] == BASE
    # Planted: the trainer with ffd, 8 % above the baseline; padded batches of four, 35 % below.
    assert content["answer"]["fastest"].startswith("trainer + ")
    assert "trainer + ffd" in {content["answer"]["fastest"], *content["answer"]["equal"]}
    assert table["trainer + ffd"]["speed_beside_none"] == pytest.approx(1.08, rel=0.03)
    assert table["none (micro-batch 4)"]["speed_beside_none_high"] < 0.75
    assert table["none (micro-batch 4)"]["place"] == "slower"
    assert content["answer"]["same_loss"] is True
    assert [f["name"] for f in content["failures"]] == list(failed)
    assert content["failures"][0]["reason"] == "TrainingError: the loss is not finite"
    assert table["loader + ffs"]["runs"] == 2
    assert [f["what"] for f in content["findings"]] == ["seeds"]
    assert content["commands"] == ["python train.py -m packing=none,trainer"]


def test_a_seed_that_ran_again_tells_of_noise_but_not_of_learning(tmp_path: Path) -> None:
    for turn, factor in enumerate((1.0, 1.02, 0.99)):
        for mode, speed in (("none", 6000.0), ("trainer", 7800.0 + 40 * turn)):
            run = Synthetic(mode=mode, speed=speed * factor, order=2 * turn)
            write_run(tmp_path / f"{mode}{turn}", run)
    content = report(tmp_path)
    assert content["answer"]["speed"].startswith("trainer + mffd is fastest: ")
    assert rows(content)["trainer + mffd"]["speed_beside_none_low"] > 1.25
    assert content["answer"]["same_loss"] is None
    assert "no spread is known" in content["answer"]["learning"]


def test_a_choice_of_one_seed_is_not_said_to_be_equal(tmp_path: Path) -> None:
    pair(tmp_path, second={"speed": 7800.0})
    write_run(tmp_path / "late", Synthetic(packer="bfd", seed=1, speed=7000.0))
    answer = report(tmp_path)["answer"]
    assert answer["fastest"] == "trainer + mffd" and answer["equal"] == []
    assert "too few common seeds to tell of trainer + bfd" in answer["speed"]


def test_equals_are_named_together(tmp_path: Path) -> None:
    pair(tmp_path, second={"speed": 7800.0})
    for seed in (1, 2, 3):
        write_run(tmp_path / f"b{seed}", Synthetic(packer="bfd", seed=seed, speed=7800.0, **NOISE))
    answer = report(tmp_path)["answer"]
    assert {answer["fastest"], *answer["equal"]} == {"trainer + mffd", "trainer + bfd"}
    assert " are fastest and equal within noise: " in answer["speed"]


def test_the_curves_are_means_over_seeds(tmp_path: Path) -> None:
    content = report(pair(tmp_path, first={"shared_noise": 0.0}, second={"shared_noise": 0.0}))
    curves = content["curves"]
    assert {kind: set(panels) for kind, panels in curves.items()} == {
        "val": {"real_tokens", "wall_seconds", "steps"},
        "train": {"real_tokens", "wall_seconds", "steps"},
        "apart": {"real_tokens"},
    }
    for panels in curves.values():
        for series in panels.values():
            assert {one["choice"] for one in series} == {BASE, "trainer + mffd"}
    steps = next(c for c in curves["val"]["steps"] if c["choice"] == BASE)
    assert steps["x"] == [0, 10, 20, 30, 40]
    finals = []
    for seed in (1, 2, 3):
        last = (tmp_path / f"none-{seed}" / "metrics.jsonl").read_text().splitlines()[-1]
        finals.append(json.loads(last)["val_loss"])
    mean = sum(finals) / 3
    sd = math.sqrt(sum((v - mean) ** 2 for v in finals) / 2)
    assert steps["mean"][-1] == pytest.approx(mean)
    assert steps["high"][-1] - steps["mean"][-1] == pytest.approx(sd)


def test_what_sets_losses_apart_is_taken_within_a_seed(tmp_path: Path) -> None:
    # A seed moves all of its runs by far more than the choices differ.
    moved = {"loss_noise": 0.0, "shared_noise": 0.5}
    content = report(pair(tmp_path, first=moved, second={**moved, "loss_shift": 0.01}))
    apart = {one["choice"]: one for one in content["curves"]["apart"]["real_tokens"]}
    assert apart[BASE]["x"] == apart["trainer + mffd"]["x"]
    assert apart[BASE]["mean"] == pytest.approx([-0.005] * 5)
    assert apart["trainer + mffd"]["mean"] == pytest.approx([0.005] * 5)
    assert apart[BASE]["high"] == pytest.approx(apart[BASE]["low"])
    val = content["curves"]["val"]["real_tokens"][0]
    assert val["high"][-1] - val["low"][-1] > 0.1


def test_a_choice_that_lost_a_seed_does_not_move_the_others(tmp_path: Path) -> None:
    content = report(pair(tmp_path))
    whole = {one["choice"]: one for one in content["curves"]["apart"]["real_tokens"]}
    write_run(tmp_path / "third-1", Synthetic(packer="bfd", seed=1, loss_shift=9.0))
    content = report(tmp_path)
    found = {one["choice"]: one for one in content["curves"]["apart"]["real_tokens"]}
    assert set(found) == {*whole, "trainer + bfd"}
    for choice, one in whole.items():
        assert found[choice]["mean"] == pytest.approx(one["mean"], abs=1e-6)


def test_a_packer_that_draws_with_the_seed_of_the_run_is_one_choice(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        drawn = {"packer.seed": seed}
        write_run(tmp_path / f"a{seed}", Synthetic(packer="ffs", seed=seed, overrides=drawn))
        write_run(tmp_path / f"b{seed}", Synthetic(packer="mffd", seed=seed))
        fixed = {"packer.seed": 99}
        write_run(tmp_path / f"c{seed}", Synthetic(packer="ffs", seed=seed, overrides=fixed))
    content = report(tmp_path)
    assert {c["label"]: len(c["runs"]) for c in content["choices"]} == {
        "trainer + ffs packer.seed=${seed}": 3,
        "trainer + ffs packer.seed=99": 3,
        "trainer + mffd": 3,
    }
    assert content["answer"]["fair"]


def test_where_most_are_equal_the_slower_ones_are_named(tmp_path: Path) -> None:
    quiet = {"speed_noise": 0.01, "loss_noise": 0.01}
    for seed in (1, 2, 3):
        slow = Synthetic(mode="none", micro_batch=4, seed=seed, speed=4000.0, **quiet)
        write_run(tmp_path / f"slow{seed}", slow)
        for packer in ("ffd", "mffd", "bfd", "tight"):
            write_run(tmp_path / f"{packer}{seed}", Synthetic(packer=packer, seed=seed, **quiet))
    content = report(tmp_path, write=True)
    said = content["answer"]["speed"]
    assert said.startswith("4 of 5 choices are equal in speed within noise, among them trainer + ")
    assert "; none (micro-batch 4) is slower: trainer + " in said
    assert {row["place"] for row in rows(content).values()} == {"joint", "slower"}
    page = (tmp_path / "report.md").read_text("utf-8")
    assert "joint fastest" not in page
    assert "| none (micro-batch 4) (slower) |" in page


def test_where_most_are_equal_and_none_is_slower_no_slower_one_is_named(tmp_path: Path) -> None:
    quiet = {"speed_noise": 0.01, "loss_noise": 0.01}
    for seed in (1, 2, 3):
        for packer in ("ffd", "mffd", "bfd", "tight"):
            write_run(tmp_path / f"{packer}{seed}", Synthetic(packer=packer, seed=seed, **quiet))
    # One run: too few common seeds to tell of it.
    write_run(tmp_path / "once", Synthetic(packer="ffs", seed=1, speed=7500.0, **quiet))
    said = report(tmp_path)["answer"]["speed"]
    assert "are fastest and equal within noise" in said
    assert "too few common seeds to tell of trainer + ffs" in said
    assert "slower" not in said
