"""The results of ``bench/packers.py`` as Markdown."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import psutil
from distributions import DISTRIBUTIONS
from packers_goals import goal_lines
from packers_measure import Result
from peers import PEERS

ROOT = Path(__file__).resolve().parent.parent
# What every packer's bins and speed are held against.
REFERENCE = "lightbinpack obfd"
# Where the speeds are compared, if it was measured; else at the largest size below.
COMPARED = ("chat", 4096, 1_000_000)

COLUMNS = f"""\
- CPU s: the best round, all threads, the cycle collector off. What a packer takes, Python lists or
  numpy arrays, is made before its time begins; what it gives is of the same kind.
- Over: bins above L2, the larger of tokens / capacity and the bound of Martello and Toth.
- Fill: tokens / (bins x capacity).
- Balance: mean over the steps of the slowest of 8 ranks / their mean - 1, work being the sum of
  squared lengths; bins shuffled once (seed 0) and dealt in turn, 8 a rank and step.
- Beside LBP: bins more than `{REFERENCE}` fills.
- Every result was checked: each sample in one bin, no bin above the capacity."""


def header(command: str) -> dict[str, Any]:
    """Date, code, machine and versions, for Markdown and JSON."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "date": str(datetime.date.today()),
        "commit": commit or "unknown",
        "dirty": commit.endswith("-dirty"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "versions": {
            "Python": platform.python_version(),
            "numpy": version("numpy"),
            "numba": _version_of("numba"),
            **{peer.distribution: peer.version for peer in PEERS},
        },
        "command": command,
    }


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """What the kernel calls the processor, or else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _header_lines(head: dict[str, Any]) -> list[str]:
    """The header as a list."""
    versions = [f"{name} {number}" for name, number in head["versions"].items() if number]
    missing = [
        f"- not installed, not measured: {peer.distribution}: `{peer.install.split(' (')[0]}`"
        + (f" ({peer.install.split(' (')[1]}" if " (" in peer.install else "")
        for peer in PEERS
        if head["versions"][peer.distribution] is None
    ]
    return [
        f"# Sequence packers, {head['date']}",
        "",
        f"- commit {head['commit']}{' (uncommitted changes)' if head['dirty'] else ''}",
        f"- {head['cpu']}, {head['cores']} cores, {head['memory_gib']} GiB; load average at the "
        f"start {head['load_average'][0]}",
        f"- {', '.join(versions)}",
        f"- `{head['command']}`",
        *missing,
        "",
    ]


def report(
    head: dict[str, Any],
    results: Sequence[Result],
    fresh: Sequence[dict[str, Any]],
    reached: dict[str, Any],
    picture: str | None,
) -> str:
    """The whole document."""
    used = {result.distribution for result in results}
    definitions = [
        f"{name} = {distribution.definition}"
        for name, distribution in DISTRIBUTIONS.items()
        if name in used
    ]
    drawn = f"- Lengths: {'; '.join(definitions)}; rounded and clipped to 1 to C."
    lines = [*_header_lines(head), COLUMNS, drawn, ""]
    if picture:
        lines += [f"![Bins over the bound against speed]({picture})", ""]
    lines += [*_speed_ratios(results), *_growth(results), *_fresh_lines(fresh)]
    if reached:
        lines += goal_lines(reached)
    for (name, capacity, n), group in groupby(results, lambda r: (r.distribution, r.capacity, r.n)):
        lines += _table(name, capacity, n, list(group))
    return "\n".join(lines).rstrip() + "\n"


def _table(name: str, capacity: int, n: int, results: list[Result]) -> list[str]:
    """One distribution, capacity and size."""
    reference = next((r.bins for r in results if r.name == REFERENCE), None)
    lines = [
        f"## {name}, C = {capacity:,}, n = {n:,} (L2 = {results[0].bound:,})",
        "",
        "| packer | CPU s | sequences/s | bins | over | fill | balance | beside LBP | remarks |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        if r.bins is None or r.seconds is None or r.speed is None:
            lines.append(f"| {r.name} | | | | | | | | {r.skipped or r.problem} |")
            continue
        lines.append(
            f"| {r.name} | {_seconds(r.seconds)} | {_speed(r.speed)} | {r.bins:,} | "
            f"{r.bins - r.bound:+,} ({r.over_percent:.3f} %) | {100 * (r.fill or 0):.2f} % | "
            f"{'' if r.balance is None else f'{100 * r.balance:.1f} %'} | "
            f"{'' if reference is None else f'{r.bins - reference:+,}'} | "
            f"{f'**WRONG: {r.problem}**' if r.problem else r.skipped} |"
        )
    return [*lines, ""]


def _seconds(seconds: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{seconds:.5f}" if seconds < 0.1 else f"{seconds:.3g}"


def _speed(speed: float) -> str:
    """Thousands or millions a second."""
    return f"{speed / 1e6:.3g} M" if speed >= 1e6 else f"{speed / 1e3:.3g} k"


def compared_case(results: Sequence[Result]) -> list[Result]:
    """The results at ``COMPARED``, else those of the largest chat case, else of the first case."""
    where = [(r.distribution, r.capacity, r.n) for r in results if r.seconds is not None]
    smaller = [case for case in where if case[:2] == COMPARED[:2] and case[2] <= COMPARED[2]]
    chosen = max(smaller, key=lambda case: case[2]) if smaller else where[0] if where else None
    return [r for r in results if (r.distribution, r.capacity, r.n) == chosen]


def _speed_ratios(results: Sequence[Result]) -> list[str]:
    """How many times faster everything is than the two fastest peers' lists and arrays."""
    case = {r.name: r for r in compared_case(results) if r.seconds}
    against = [
        name for name in (REFERENCE, "seqpacker obfd", "seqpacker obfd flat") if name in case
    ]
    if not against:
        return ["No peer to compare with was measured.", ""]
    first = case[against[0]]
    lines = [
        f"## Speed beside peers: {first.distribution}, C = {first.capacity:,}, n = {first.n:,}",
        "",
        f"| packer | {' | '.join(f'times as fast as {name}' for name in against)} |",
        f"|---|{'---|' * len(against)}",
    ]
    for name, result in sorted(case.items(), key=lambda pair: pair[1].seconds or 0):
        ratios = [f"{(case[peer].seconds or 0) / (result.seconds or 1):.2f}" for peer in against]
        lines.append(f"| {name} | {' | '.join(ratios)} |")
    return [*lines, ""]


def _growth(results: Sequence[Result]) -> list[str]:
    """Seconds at the largest size over those at the one before, where the speeds are compared."""
    case = compared_case(results)
    if not case:
        return []
    here = [r for r in results if (r.distribution, r.capacity) == (case[0].distribution,
                                                                   case[0].capacity)]  # fmt: skip
    lines = [
        f"## Growth: {case[0].distribution}, C = {case[0].capacity:,}",
        "",
        "CPU seconds at a size over those at the one before. Sizes grow tenfold between the "
        "defaults, so 10 is linear and 100 quadratic.",
        "",
    ]
    sizes = sorted({r.n for r in here})
    pairs = list(pairwise(sizes))
    if not pairs:
        return [*lines, "Only one size was measured.", ""]
    lines += [
        f"| packer | {' | '.join(f'{large:,} over {small:,}' for small, large in pairs)} |",
        f"|---|{'---|' * len(pairs)}",
    ]
    for name in dict.fromkeys(r.name for r in here):
        seconds = {r.n: r.seconds for r in here if r.name == name}
        cells = [_ratio(seconds[large], seconds[small]) for small, large in pairs]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def _ratio(above: float | None, below: float | None) -> str:
    return f"{above / below:.1f}" if above and below else "not measured"


def _fresh_lines(fresh: Sequence[dict[str, Any]]) -> list[str]:
    """What the first call of a process costs."""
    if not fresh:
        return []
    lines = [
        f"## In a fresh process: chat, C = {fresh[0]['capacity']:,}, n = {fresh[0]['n']:,}",
        "",
        "Wall-clock milliseconds; machine code is on disk from the runs before.",
        "",
        "| packer | import | first call | second call |",
        "|---|---|---|---|",
    ]
    for row in fresh:
        if "failed" in row:
            lines.append(f"| {row['name']} | {row['failed']} | | |")
        else:
            times = [f"{1000 * row[part]:.1f}" for part in ("import_s", "first_s", "second_s")]
            lines.append(f"| {row['name']} | {' | '.join(times)} |")
    return [*lines, ""]
