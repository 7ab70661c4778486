"""``report.json``: everything the report says, for programs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sft.report.collect import finite
from sft.report.content import Content
from sft.report.statistics import Difference
from sft.report.tables import flat_table


def to_json(content: Content, output: Path) -> str:
    """The text of ``report.json``; numbers that are not known are null."""
    return json.dumps(finite(as_dict(content, output)), indent=1, allow_nan=False) + "\n"


def as_dict(content: Content, output: Path) -> dict[str, Any]:
    """The content as plain values."""
    verdict = content.verdict
    return {
        "written_at": content.written_at,
        "answer": {**asdict(verdict), "fair": not any(f.unfair for f in content.findings)},
        "findings": [asdict(finding) for finding in content.findings],
        "compared_at": asdict(content.common),
        "baseline": content.baseline,
        "table": flat_table(content),
        "speed_differences": _differences(content.speeds, verdict.fastest),
        "val_loss_differences": _differences(content.losses, verdict.fastest),
        "noise": {
            "speed_sd_within_choice": content.speeds.within_sd(),
            "speed_sd_within_seed": content.speeds.residual_sd,
            "drift": asdict(content.drift) if content.drift else None,
        },
        "curves": content.curves,
        "train_loss_smoothed_over_steps": content.smoothing,
        "length_histograms": content.lengths,
        "segments": content.segments,
        "failures": [
            {"name": f.name, "path": relative(f.path, output), "reason": f.reason}
            for f in content.failures
        ],
        "differing_keys": content.differing,
        "choices": [
            {
                "label": c.label,
                "settings": c.settings,
                "runs": [{"seed": r.seed, "path": relative(r.path, output)} for r in c.runs],
                "failed": [{"seed": r.seed, "path": relative(r.path, output)} for r in c.failed],
            }
            for c in content.choices
        ],
        "machines": provenance(content),
        "commands": content.commands,
        "notes": content.notes,
    }


def _differences(comparison: Any, best: str | None) -> list[dict[str, Any]]:
    """Each choice beside the fastest; of speeds the values are logarithms of ratios."""
    if best is None or best not in comparison.values:
        return []
    found = []
    for choice in comparison.choices:
        difference: Difference | None = comparison.difference(choice, best)
        if choice != best and difference is not None:
            found.append({"choice": choice, "beside": best, **asdict(difference)})
    return found


def provenance(content: Content) -> list[dict[str, Any]]:
    """On what, with what: each set of versions, machine and commit once."""
    sets: dict[str, dict[str, Any]] = {}
    for run in content.runs:
        told = {
            "versions": run.description.get("versions"),
            "hardware": run.description.get("hardware"),
            "kernels": run.description.get("kernels"),
            "git_commit": run.description.get("git_commit"),
            "tokenizer": run.description.get("tokenizer")
            or run.config.get("data", {}).get("tokenizer"),
            "data": run.description.get("data"),
        }
        entry = sets.setdefault(json.dumps(told, sort_keys=True), {**told, "runs": 0})
        entry["runs"] += 1
    return list(sets.values())


def relative(path: Path, output: Path) -> str:
    """A path as a link from the report finds it."""
    return Path(os.path.relpath(path.resolve(), output.resolve())).as_posix()


def link(path: Path, output: Path) -> str:
    """The same, as a URL."""
    return quote(relative(path, output))
