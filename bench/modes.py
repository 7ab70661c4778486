"""None, trainer and loader side by side on one machine: speed, fill and loss, as a table.

    python bench/modes.py                 about fifteen minutes on two cores
    python bench/modes.py --limit 60 --rounds 1

Every run trains one epoch of the same conversations, so all see the same real tokens, the table's
validation losses are at equal real tokens, and speeds are over the same work. Each run is a fresh
process; the rounds go through the choices in turn, so that a machine that drifts does not favour
one of them, and a speed is the median over the rounds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CHOICES = {
    "none, 1 a microbatch": ["packing=none", "train.micro_batch_size=1"],
    "none, 4 a microbatch": ["packing=none", "train.micro_batch_size=4"],
    "trainer, mffd": ["packing=trainer", "packer=mffd"],
    "loader, mffd": ["packing=loader", "packer=mffd"],
}


def run(overrides: list[str], run_dir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """One run in a process of its own; its ``summary.json`` and ``run.json``."""
    command = [sys.executable, str(ROOT / "train.py"), f"run_dir={run_dir}", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return tuple(  # type: ignore[return-value]
        json.loads((run_dir / name).read_text(encoding="utf-8"))
        for name in ("summary.json", "run.json")
    )


def measure(common: list[str], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """All choices, ``rounds`` times in turn."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in CHOICES}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(rounds):
            for i, (name, overrides) in enumerate(CHOICES.items()):
                summary, _ = run([*common, *overrides], Path(directory) / f"{number}-{i}")
                results[name].append(summary)
                speed = summary["real_tokens_per_s"]
                print(f"round {number + 1}: {name}: {speed:,.0f} real tokens/s", file=sys.stderr)
    return results


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """The results as Markdown."""
    lines = [
        "| who packs | fill | microbatches | real tokens/s | beside none, 1 | slot tokens/s | "
        "loss tokens/s | validation loss | real tokens | peak memory |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    baseline = results["none, 1 a microbatch"]
    for name, rounds in results.items():
        first = rounds[0]
        median = {
            kind: statistics.median(r[f"{kind}_tokens_per_s"] for r in rounds)
            for kind in ("real", "slot", "loss")
        }
        # Within a round, so that a slow quarter of an hour is slow for both.
        ratio = statistics.median(
            r["real_tokens_per_s"] / b["real_tokens_per_s"]
            for r, b in zip(rounds, baseline, strict=True)
        )
        before, after = (first["validations"][i]["val_loss"] for i in (0, -1))
        lines.append(
            f"| {name} | {first['fill']:.3f} | {first['microbatches']:,} | {median['real']:,.0f} | "
            f"{ratio:.2f} | {median['slot']:,.0f} | {median['loss']:,.0f} | "
            f"{before:.3f} -> {after:.3f} | {first['real_tokens']:,} | "
            f"{max(r['peak_memory_bytes'] for r in rounds) / 2**30:.2f} GiB |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--limit", type=int, default=200, help="conversations")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="for every run, as for train.py")
    arguments = parser.parse_args()
    common = [
        f"data.limit={arguments.limit}", "train.steps=null", "train.epochs=1",
        "train.eval_every=0", *arguments.overrides,
    ]  # fmt: skip
    results = measure(common, arguments.rounds)
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    command = " ".join(["python bench/modes.py", *sys.argv[1:]])
    print(f"{datetime.date.today()}, commit {commit}, {arguments.rounds} rounds, `{command}`\n")
    print(table(results))


if __name__ == "__main__":
    main()
