"""What a fresh process pays for a packer: ``bench/packers.py`` starts this for each of them.

    python bench/first_call.py ffd.pack_csr 10000 4096

Prints the wall-clock seconds of the import and of two calls, as JSON. Machine code that an earlier
process left on disk is loaded within the first call.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from distributions import DISTRIBUTIONS
from peers import Contender, contenders


def first_calls(
    chosen: Sequence[Contender], n: int, capacity: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Import, first and second call of each packer, in a process of its own.

    Args:
        chosen: the packers.
        n: how many chat lengths they pack.
        capacity: tokens a bin may hold.
        say: told what is going on.

    Returns:
        For each packer its name, what it packed, and the seconds, or why it failed.
    """
    rows = []
    for contender in chosen:
        row: dict[str, Any] = {"name": contender.name, "n": n, "capacity": capacity}
        command = [sys.executable, __file__, contender.name, str(n), str(capacity)]
        for _ in range(2):  # the first may have to compile, and leaves the machine code on disk
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            error = next((line for line in reversed(lines) if "Error" in line), lines[-1])
            row["failed"] = f"failed: {error}"[:120]
        else:
            row |= json.loads(done.stdout)
        rows.append(row)
        say(f"fresh process: {row}")
    return rows


def main() -> None:
    """Measure one packer and print."""
    name, n, capacity = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    (contender,) = contenders([name])
    prepared = contender.prepare(DISTRIBUTIONS["chat"].sample(n, capacity))
    times = [time.perf_counter()]
    call = contender.make()
    times.append(time.perf_counter())
    for _ in range(2):
        call(prepared, capacity)
        times.append(time.perf_counter())
    parts = ("import_s", "first_s", "second_s")
    print(json.dumps({part: times[i + 1] - times[i] for i, part in enumerate(parts)}))


if __name__ == "__main__":
    main()
