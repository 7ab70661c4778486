"""How far training on many processes is from training on one: ``python -m bench.invariance``.

Prints a table of relative differences in fp32 over gloo, one optimizer step a line.
"""

from __future__ import annotations

import datetime
import subprocess

from tests.models.parallel.matrix import LAYOUTS, differences


def main() -> None:
    """Measure and print."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    today = datetime.date.today()
    print(f"`python -m bench.invariance`, {today}, commit {commit}; fp32, gloo\n")
    titles = "processes", "layout, rows", "loss", "norm", "gradient", "weights after", "loss after"
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for world_size in LAYOUTS:
        for name, found in differences(world_size).items():
            values = (found.loss, found.norm, found.gradient, found.weights, found.loss_after)
            texts = ["-" if value is None else f"{value:.1e}" for value in values]
            print(f"| {world_size} | {name} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main()
