"""What the tests of the report share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sft.report import write_report
from sft.report.collect import collect
from sft.report.content import build
from sft.report.machine import to_json
from tests.sft.report.synthetic import Synthetic, write_run

NOISE: dict[str, Any] = {"speed_noise": 0.01, "loss_noise": 0.004, "shared_noise": 0.02}
BASE = "none (micro-batch 1)"


def report(directory: Path, *, write: bool = False) -> dict[str, Any]:
    """The machine's version, which must hold no NaN; all files only where a test reads them."""
    if write:
        write_report([directory], directory)
        text = (directory / "report.json").read_text(encoding="utf-8")
    else:
        text = to_json(build(collect([directory])), directory)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in report.json")

    content: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return content


def rows(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    table = content["table"]
    lines = (dict(zip(table["columns"], row, strict=True)) for row in table["rows"])
    return {line["choice"]: line for line in lines}


def pair(directory: Path, seeds: int = 3, first: Any = None, second: Any = None) -> Path:
    """A baseline and the trainer's packing, over some seeds."""
    for seed in range(1, seeds + 1):
        none = {"mode": "none", "micro_batch": 1, "speed": 6000.0, **NOISE, **(first or {})}
        write_run(directory / f"none-{seed}", Synthetic(seed=seed, **none))
        packed = {"speed": 6000.0, **NOISE, **(second or {})}
        write_run(directory / f"packed-{seed}", Synthetic(seed=seed, **packed))
    return directory
