"""What runs really leave is what the report reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sft.report import write_report
from tests.sft.report.helpers import rows

SMALL = (
    "data.limit=60", "packing.capacity=256", "train.global_batch_tokens=1024", "train.steps=4",
    "train.speed_skip_steps=1",
)  # fmt: skip


@pytest.mark.slow
def test_the_report_agrees_with_the_runs(run_app: Callable[..., Any], tmp_path: Path) -> None:
    results = {
        (mode, seed): run_app(f"packing={mode}", f"seed={seed}", *SMALL)
        for seed in (1, 2)
        for mode in ("none", "trainer", "loader")
    }
    write_report([tmp_path], tmp_path / "report")
    content = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    names = {"none": "none (micro-batch 4)", "trainer": "trainer + mffd", "loader": "loader + mffd"}
    table = rows(content)
    assert set(table) == set(names.values())
    assert content["failures"] == [] and content["notes"] == []
    for mode, name in names.items():
        summaries = [results[mode, seed].summary for seed in (1, 2)]
        line = table[name]
        assert line["runs"] == 2 and line["seeds"] == "1, 2"
        for key in ("fill", "real_tokens_per_s", "loss_tokens_per_s", "peak_memory_bytes"):
            assert line[key] == pytest.approx(sum(s[key] for s in summaries) / 2)
        if mode != "none":
            waste = [s["rows"] / s["fewest_rows"] - 1 for s in summaries]
            assert line["waste"] == pytest.approx(sum(waste) / 2)
        shares = sum(line[f"{p}_share"] for p in ("data_wait", "packing", "forward_backward"))
        assert shares + line["optimizer_share"] == pytest.approx(1)
    # The run that saw the fewest tokens is compared at its end.
    shortest = min(results.values(), key=lambda result: result.summary["real_tokens"])
    assert content["compared_at"]["real_tokens"] == shortest.summary["real_tokens"]
    # Every axis has the curve of every choice, and what was measured has no hole.
    for panels in content["curves"].values():
        for series in panels.values():
            assert {one["choice"] for one in series} == set(names.values())
            assert all(one["seeds"] == 2 for one in series)
    unfair = {f["what"] for f in content["findings"] if f["unfair"]}
    assert unfair <= {"real tokens per optimizer step"}  # few samples a step: not level by chance
