"""What is not the same is named, with its values; what is compared may differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sft.report.helpers import pair, report, rows
from tests.sft.report.synthetic import Synthetic, write_run

UNFAIR = {
    "tokens": ({"tokens_per_step": 17_000}, "real tokens per optimizer step", "17,0"),
    "data": ({"fingerprint": "another"}, "data", "another"),
    "tokenizer": (
        {"tokenizer": "smollm2", "overrides": {"data.tokenizer": "bytes"}},
        "tokenizer",
        "smollm2",
    ),
    "model": ({"overrides": {"model.num_layers": 6}}, "model (model.num_layers)", "6"),
    "steps": ({"overrides": {"train.steps": 41}}, "steps (train.steps)", "41"),
    "optimizer": ({"overrides": {"optimizer.lr": 0.5}}, "optimizer (optimizer.lr)", "0.5"),
    "schedule": (
        {"overrides": {"schedule.warmup_fraction": 0.4}},
        "schedule (schedule.warmup_fraction)",
        "0.4",
    ),
    "capacity": ({"overrides": {"packing.capacity": 2048}}, "capacity (packing.capacity)", "2048"),
}


@pytest.mark.parametrize("case", UNFAIR)
def test_an_unfair_comparison_is_called_so(tmp_path: Path, case: str) -> None:
    change, what, value = UNFAIR[case]
    content = report(pair(tmp_path, second=change))
    assert not content["answer"]["fair"]
    assert content["answer"]["speed"].startswith("This is not a fair comparison (")
    unfair = {f["what"]: f for f in content["findings"] if f["unfair"]}
    assert list(unfair) == [what]
    assert any(value in told for told, _ in unfair[what]["values"])
    assert any("trainer + mffd" in labels[0] for _, labels in unfair[what]["values"])


def test_the_page_says_that_it_is_not_fair_and_with_which_values(tmp_path: Path) -> None:
    change = {"overrides": {"optimizer.lr": 0.5}}
    report(pair(tmp_path, second=change), write=True)
    for name in ("report.html", "report.md"):
        text = (tmp_path / name).read_text(encoding="utf-8").replace("\\_", "_")
        for part in ("Not fair:", "optimizer (optimizer.lr)", "0.5", "0.003"):
            assert part in text


def test_other_seeds_are_unfair_and_pairs_use_common_ones(tmp_path: Path) -> None:
    pair(tmp_path, second={"speed": 7800.0})
    write_run(tmp_path / "packed-9", Synthetic(seed=9, speed=80000.0))
    content = report(tmp_path)
    assert [f["what"] for f in content["findings"] if f["unfair"]] == ["seeds"]
    line = rows(content)["trainer + mffd"]
    assert line["runs"] == 4
    # The seed that the baseline lacks is ten times as fast, and not in the ratio.
    assert line["speed_beside_none"] == pytest.approx(1.3, rel=0.03)


def test_tokens_within_five_percent_are_fair(tmp_path: Path) -> None:
    content = report(pair(tmp_path, second={"tokens_per_step": 16_600}))
    assert content["answer"]["fair"] and content["findings"] == []
