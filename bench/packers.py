"""Every packer here and those of other packages, side by side: speed, bins and balance.

    python bench/packers.py                       more than an hour on two cores
    python bench/packers.py --sizes 10000 100000 --distributions chat --packers 'ffd.*' 'lightbin*'
    pip install -e '.[bench]'                     what it compares with, and what it draws with

One process measures everything; the rounds go through the packers in turn, so that a machine that
drifts does not favour one of them, and a packer's time is its best round. A packer whose next call
is predicted to take more than ``--limit`` CPU seconds is skipped and the table says so. Writes
``packers-<date>.md``, ``.json`` with every number, and ``.png``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributions import DISTRIBUTIONS
from first_call import first_calls
from packers_goals import goals
from packers_measure import Result, Run
from packers_report import ROOT, header, report
from peers import Contender, contenders

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
CAPACITIES = (4096, 32768)


def say(line: str) -> None:
    """Progress goes where it is not in the way of results."""
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--sizes", nargs="+", type=int, default=SIZES, metavar="N", help="numbers of lengths")
    add("--distributions", nargs="+", choices=DISTRIBUTIONS, default=list(DISTRIBUTIONS))
    add("--capacities", nargs="+", type=int, default=CAPACITIES, metavar="C")
    add("--packers", nargs="+", default=["*"], metavar="PATTERN", help="names, as in a shell")
    add("--rounds", type=int, default=3)
    add("--limit", type=float, default=20, help="CPU seconds a call may be predicted to take")
    add("--output", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    add("--list", action="store_true", help="say which packers there are and stop")
    add("--again", type=Path, metavar="JSON", help="measure nothing, write an old run's files anew")
    return parser.parse_args()


def command() -> str:
    """The command as typed, without where it writes to."""
    words = sys.argv[1:]
    if "--output" in words:
        at = words.index("--output")
        del words[at : at + 2]
    return shlex.join(["python", "bench/packers.py", *words])


def installed(patterns: list[str]) -> list[Contender]:
    """The chosen packers that can run; says which cannot and why."""
    chosen = contenders(patterns)
    for package in dict.fromkeys(contender.package for contender in chosen):
        if package.version is None:
            say(f"{package.distribution} is not installed: {package.install}")
    return [contender for contender in chosen if contender.package.version is not None]


def measure(
    arguments: argparse.Namespace, head: dict[str, Any], chosen: list[Contender]
) -> list[Result]:
    """All cases, capacity by capacity; if interrupted, those that were finished.

    Every finished case is on disk before the next one, which may bring the process down.
    """
    run = Run(chosen, arguments.rounds, arguments.limit, say)
    results: list[Result] = []
    try:
        for result in cases(run, arguments):
            results.append(result)
            if result.name == chosen[-1].name:
                write_numbers(arguments.output, head, results, [], {})
    except KeyboardInterrupt:
        say("interrupted: what was finished is written")
    return results


def cases(run: Run, arguments: argparse.Namespace) -> Iterator[Result]:
    """Results as they come."""
    for capacity in arguments.capacities:
        for name in arguments.distributions:
            distribution = DISTRIBUTIONS[name]
            if distribution.capacities and capacity not in distribution.capacities:
                only = " and ".join(f"{c:,}" for c in distribution.capacities)
                say(f"{name} is defined for C={only} only: not measured at C={capacity:,}")
                continue
            yield from run(distribution, capacity, arguments.sizes)


def read(
    path: Path,
) -> tuple[dict[str, Any], list[Result], list[dict[str, Any]], dict[str, Any]]:
    """What an earlier run wrote: header, results, fresh processes, goals."""
    document = json.loads(path.read_text(encoding="utf-8"))
    results = [Result.of_raw(raw) for raw in document["results"]]
    return document["header"], results, document["fresh_process"], document["goals"]


def write_numbers(
    directory: Path,
    head: dict[str, Any],
    results: list[Result],
    fresh: list[dict[str, Any]],
    reached: dict[str, Any],
) -> str:
    """The JSON file; the name that the others share with it."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"packers-{head['date']}"
    document = {
        "header": head,
        "fresh_process": fresh,
        "goals": reached,
        "results": [r.raw() for r in results],
    }
    text = json.dumps(document)
    (directory / f"{stem}.json").write_text(text + "\n", encoding="utf-8")
    return stem


def write(
    directory: Path,
    head: dict[str, Any],
    results: list[Result],
    fresh: list[dict[str, Any]],
    reached: dict[str, Any],
) -> None:
    """The three files; without matplotlib two of them."""
    stem = write_numbers(directory, head, results, fresh, reached)
    try:
        from packers_plot import draw

        draw(results, head, directory / f"{stem}.png")
        picture = f"{stem}.png"
    except ImportError as error:
        say(f"no picture: {error}; pip install -e '.[bench]'")
        picture = None
    page = report(head, results, fresh, reached, picture)
    (directory / f"{stem}.md").write_text(page, encoding="utf-8")
    say(f"written: {stem}.md, .json{' and .png' if picture else ''}")


def main() -> None:
    """Measure and write."""
    arguments = parse()
    if arguments.again:
        write(arguments.output, *read(arguments.again))
        return
    chosen = installed(arguments.packers)
    if arguments.list or not chosen:
        print("\n".join(contender.name for contender in chosen) or "no packer matches")
        return
    head = header(command())
    results = measure(arguments, head, chosen)
    n, capacity = min(arguments.sizes), arguments.capacities[0]
    alive = {r.name for r in results if r.seconds is not None and r.n == n}
    fresh = first_calls([c for c in chosen if c.name in alive], n, capacity, say)
    write(arguments.output, head, results, fresh, goals(say))


if __name__ == "__main__":
    main()
