"""What the tables of ``bench/packers.py`` do not show: plans, the linear bound, level ranks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from distributions import DISTRIBUTIONS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data.balance import Cost, imbalance, level, window_order
from data.packers import load_packer, packer_names
from data.packers._by_length import ByLength
from data.packers.bounds import lower_bound
from data.packers.cutting_stock import lp_bound

# The workload model of verl (Apache-2.0): tokens count about as much as attention at 24,576 each.
COST = Cost(per_token=24576, per_squared_token=1)
COPIES = 50


def _repeated(*counts: tuple[int, int]) -> npt.NDArray[np.int64]:
    return np.array([length for length, count in counts for _ in range(count * COPIES)])


# Lists whose optimum is known: it fills its bins to the brim.
WORST = {
    "11/9 for first-fit decreasing": (_repeated((51, 6), (27, 6), (26, 6), (23, 12)), 100, 9),
    "the same, C = 44": (_repeated((23, 6), (13, 6), (12, 6), (9, 12)), 44, 9),
    "71/60 for first-fit decreasing": (_repeated((20, 60), (15, 60), (12, 180)), 71, 60),
}


def best_of(call: Callable[[], Any], rounds: int) -> float:
    """The fewest CPU seconds of some calls."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def planners() -> dict[str, ByLength]:
    """The packers that can pack a histogram."""
    packers = {name: load_packer(name) for name in packer_names()}
    return {name: packer for name, packer in packers.items() if isinstance(packer, ByLength)}


def plans(say: Callable[[str], None], rounds: int = 15) -> list[dict[str, Any]]:
    """CPU seconds of a histogram's plan, beside ``ffd.pack_csr`` of a million samples."""
    rows = []
    ffd = load_packer("ffd")
    for name, capacity in (("chat", 4096), ("longmix", 32768)):
        lengths = DISTRIBUTIONS[name].sample(1_000_000, capacity)
        ffd.pack_csr(lengths, capacity)
        packing = best_of(partial(ffd.pack_csr, lengths, capacity), rounds)
        for n in (10_000, 1_000_000, 10_000_000):
            sample = DISTRIBUTIONS[name].sample(n, capacity)
            count = np.bincount(sample, minlength=capacity + 1)
            for packer_name, packer in planners().items():
                patterns = packer.plan_histogram(count).bins_per_pattern.size
                seconds = best_of(partial(packer.plan_histogram, count), rounds)
                rows.append(
                    {
                        "distribution": name,
                        "capacity": capacity,
                        "n": n,
                        "packer": packer_name,
                        "seconds": seconds,
                        "ffd_1m_seconds": packing,
                        "patterns": patterns,
                    }
                )
                say(f"plan: {rows[-1]}")
    return rows


def quality(say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Bins beside the linear bound, or the optimum, where first-fit decreasing is far from it."""
    cases = {
        "triplet, C = 4,096, n = 10,000": (DISTRIBUTIONS["triplet"].sample(10_000, 4096), 4096, 0),
        "code, C = 4,096, n = 5,000": (DISTRIBUTIONS["code"].sample(5000, 4096), 4096, 0),
        "chat, C = 4,096, n = 100,000": (DISTRIBUTIONS["chat"].sample(100_000, 4096), 4096, 0),
        **{name: (n, capacity, fewest * COPIES) for name, (n, capacity, fewest) in WORST.items()},
    }
    rows = []
    for case, (lengths, capacity, optimum) in cases.items():
        row: dict[str, Any] = {
            "case": case,
            "l2": lower_bound(lengths, capacity),
            "bound": optimum or lp_bound(lengths, capacity),
            "bound_is": "optimum" if optimum else "LP",
            "bins": {
                name: load_packer(name).pack_csr(lengths, capacity)[1].size - 1
                for name in packer_names()
            },
        }
        rows.append(row)
        say(f"quality: {row}")
    return rows


def ranks(say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Cost of the dearest rank over the mean, in a step of shuffled ``ffd`` bins."""
    rows = []
    for name, capacity in (("chat", 4096), ("longmix", 32768)):
        lengths = DISTRIBUTIONS[name].sample(200_000, capacity)
        costs = COST.of_bins(lengths, *load_packer("ffd").pack_csr(lengths, capacity))
        costs = np.random.default_rng(0).permutation(costs)
        for bins in (1, 4, 8):
            for size in (8, 64):
                step = size * bins
                whole = costs[: costs.size // step * step]
                steps = np.arange(whole.size).reshape(-1, size, bins)
                levelled = [s.ravel()[level(whole[s.ravel()], size)] for s in steps]
                first = [whole[s.ravel()] for s in steps[:20]]
                seconds = best_of(partial(_level_all, first, size), 3) / len(first)
                row = {
                    "distribution": name,
                    "capacity": capacity,
                    "ranks": size,
                    "bins_per_rank": bins,
                    "in_turn": imbalance(whole, steps),
                    "level": imbalance(whole, np.stack(levelled)),
                    "level_seconds": seconds,
                    "window_16": imbalance(
                        whole,
                        window_order(whole, size, window_steps=16, seed=0, bins_per_rank=bins),
                    ),
                }
                rows.append(row)
                say(f"ranks: {row}")
    return rows


def _level_all(costs: list[npt.NDArray[np.float64]], size: int) -> None:
    for step in costs:
        level(step, size)


def goals(say: Callable[[str], None]) -> dict[str, list[dict[str, Any]]]:
    """All of it."""
    return {"plans": plans(say), "quality": quality(say), "ranks": ranks(say)}


def goal_lines(measured: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The three tables."""
    lines = [
        "## Plans: the packing of a histogram, patterns with multiplicities",
        "",
        "| lengths | C | n | packer | patterns | CPU ms | part of the 1M `ffd.pack_csr` |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in measured["plans"]:
        lines.append(
            f"| {row['distribution']} | {row['capacity']:,} | {row['n']:,} | {row['packer']} | "
            f"{row['patterns']:,} | {1000 * row['seconds']:.3f} | "
            f"1/{row['ffd_1m_seconds'] / row['seconds']:.1f} |"
        )
    names = list(measured["quality"][0]["bins"])
    lines += [
        "",
        "## Bins beside the linear bound or the optimum",
        "",
        f"| lengths | L2 | LP or optimum | {' | '.join(names)} |",
        f"|---|---|---|{'---|' * len(names)}",
    ]
    for row in measured["quality"]:
        cells = [f"{n:,} (+{100 * (n / row['bound'] - 1):.2f} %)" for n in row["bins"].values()]
        lines.append(
            f"| {row['case']} | {row['l2']:,} | {row['bound_is']} {row['bound']:,} | "
            f"{' | '.join(cells)} |"
        )
    lines += [
        "",
        "## Level ranks: cost of the dearest rank over the mean of the ranks, less 1",
        "",
        "`ffd` bins of 200,000 samples, shuffled; mean over the steps. Cost: 24,576 a token and 1 "
        "a squared length, as verl has it. In turn: as they come. Level: `data.balance.level`. "
        "Window: `data.balance.window_order` over 16 steps.",
        "",
        "| lengths | C | ranks | bins a rank | in turn | level | ms a step | window |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in measured["ranks"]:
        lines.append(
            f"| {row['distribution']} | {row['capacity']:,} | {row['ranks']} | "
            f"{row['bins_per_rank']} | {100 * row['in_turn']:.2f} % | {100 * row['level']:.3f} % | "
            f"{1000 * row['level_seconds']:.2f} | {100 * row['window_16']:.3f} % |"
        )
    return [*lines, ""]
