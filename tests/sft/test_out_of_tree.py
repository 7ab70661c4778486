"""A packer of one's own: one Python file and one YAML, outside this repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACKER = '''
from dataclasses import dataclass

from data.packers.base import Packer


@dataclass(frozen=True, kw_only=True)
class Pairs(Packer):
    """Two neighbours share a row where they fit."""

    most: int = 2

    def _pack(self, items, capacity):
        bins = [[]]
        for i in range(items.lengths.size):
            if bins[-1] and not items.fit(i, bins[-1], capacity, self.most):
                bins.append([])
            bins[-1].append(i)
        return bins
'''

YAML = """# Two neighbours share a row.
_target_: my_packers.Pairs
most: 2
"""


def test_a_packer_outside_the_tree_trains_two_steps(tmp_path: Path, chitchat_dir: Path) -> None:
    (tmp_path / "my_packers.py").write_text(PACKER, encoding="utf-8")
    conf = tmp_path / "conf" / "packer"
    conf.mkdir(parents=True)
    (conf / "pairs.yaml").write_text(YAML, encoding="utf-8")
    run_dir = tmp_path / "run"
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "train.py"), "--config-dir", str(tmp_path / "conf"),
            "packer=pairs", "packing=trainer", "packing.capacity=512", f"run_dir={run_dir}",
            f"data.cache_dir={chitchat_dir}", "data.limit=60", "data.num_workers=0",
            "model.num_layers=1", "train.global_batch_tokens=2048", "train.steps=2",
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    assert summary["steps"] == 2
    run = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    assert run["config"]["packer"] == {
        "_target_": "my_packers.Pairs",
        "max_samples_per_bin": None,
        "min_bins": None,
        "bins_multiple": None,
        "most": 2,
    }
    # Rows of at most two: this packer, and no other, has packed them.
    metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [m for m in metrics if m["event"] == "train"]
    assert all(m["microbatches"] >= m["samples"] / 2 for m in steps)
    assert "Pairs" in done.stdout
    # One message on the console is the run's; nothing else may stand on stderr.
    assert done.stderr == ""
