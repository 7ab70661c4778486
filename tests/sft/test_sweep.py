"""A sweep: each choice in a directory of its own, named after what differs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_job_has_its_directory_and_a_failing_one_stops_no_other(
    tmp_path: Path, chitchat_dir: Path
) -> None:
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "train.py"), "-m",
            "packer=ffd,modified_first_fit_decreasing", "packing=none,trainer",
            "packing.kernel_boundaries=real", f"hydra.sweep.dir={tmp_path}",
            f"data.cache_dir={chitchat_dir}", "data.limit=20", "data.num_workers=0",
            "model.num_layers=1", "packing.capacity=256", "train.global_batch_tokens=512",
            "train.steps=1", "train.eval_every=0",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=tmp_path,
    )  # fmt: skip
    # kernel_boundaries does nothing without packing, so two of the four are refused.
    assert done.returncode == 2
    assert "packing.kernel_boundaries=real: rows that are not packed" in done.stderr
    assert "Traceback" not in done.stderr
    runs = sorted(tmp_path.glob("*/summary.json"))
    assert len(runs) == 2
    packers = {
        json.loads((run.parent / "run.json").read_text())["config"]["packer"]["_target_"]
        for run in runs
    }
    assert packers == {
        "data.packers.ffd.FirstFitDecreasing",
        "data.packers.mffd.ModifiedFirstFitDecreasing",
    }
    assert all("packing=trainer" in run.parent.name for run in runs)
