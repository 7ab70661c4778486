"""The preview on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

type Column = Callable[[dict[str, Any]], str]

_BARS = " ▁▂▃▄▅▆▇█"


def show(content: dict[str, Any], output: Path, console: Console | None = None) -> None:
    """Print a preview's content, and where it was written to."""
    console = console or Console()
    for described in content["data"]:
        console.print(_data_table(described))
        console.print()
    choices = content["choices"]
    for table in _tables(choices):
        console.print(table)
        console.print()
    _say(console, _notes(content))
    _say(console, _warnings(choices))
    _say(console, [f"written: {output / 'preview.json'}, {output / 'preview.png'}"])


def _say(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _data_table(described: dict[str, Any]) -> Table:
    lengths = described["lengths"]
    table = Table.grid(padding=(0, 2))
    counts = described["length_histogram"]["counts"]
    facts = {
        "data": f"{described['source']}, capacity {described['capacity']:,} tokens",
        "conversations": described["accounting_text"],
        "tokens": f"{described['accounting']['real_tokens']:,} real"
        + (
            ""
            if described["loss_token_share"] is None
            else f", {described['loss_token_share']:.0%} of them count in the loss"
        ),
        "length": f"{lengths['min']:,} to {lengths['max']:,}, mean {lengths['mean']:,.0f}; "
        + ", ".join(f"{p} {lengths[p]:,.0f}" for p in ("p5", "p50", "p95", "p99")),
        "histogram": _sparkline(counts) + f"  0 to {described['capacity']:,}",
    }
    for name, value in facts.items():
        table.add_row(f"[bold]{name}", value)
    return table


def _sparkline(counts: list[int]) -> str:
    top = max(counts)
    # What is there shows, however little it is.
    return "".join(_BARS[-(-8 * c // top)] for c in counts)


def _table(title: str, choices: list[dict[str, Any]], columns: dict[str, Column]) -> Table:
    # Narrow, so that the longest of our packers' names and the numbers fit into 80 columns.
    table = Table(
        title=title,
        title_justify="left",
        box=None,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for choice in choices:
        table.add_row(choice["name"], *(text(choice) for text in columns.values()))
    return table


def _tables(choices: list[dict[str, Any]]) -> list[Table]:
    ranks = next((c["ranks"]["ranks"] for c in choices if c["ranks"]), None)
    rows: dict[str, Column] = {
        "rows": lambda c: f"{_about(c)}{c['rows']:,}",
        "fill": lambda c: f"{_about(c)}{c['fill']:.4f}",
        "waste": lambda c: _percent(c["waste"]),
        "least": lambda c: _percent(c["least_waste"]),
        "samples": lambda c: "{mean:.1f}≤{max}".format(**c["samples_per_row"]),
        "alone": lambda c: _percent(c["samples_per_row"]["one_sample_share"]),
    }
    steps: dict[str, Column] = {
        "an epoch": lambda c: (
            f"{_about(c) if c['packing'] == 'loader' else ''}{c['steps_per_epoch']:,.10g}"
        ),
        "rows": lambda c: f"{c['per_step']['rows']['mean']:,.1f}",
        "slots": lambda c: f"{c['per_step']['slot_tokens']['mean']:,.0f}",
        "real": lambda c: f"{c['per_step']['real_tokens']['mean']:,.0f}",
        "uneven": lambda c: _percent(c["attention"]["imbalance_in_step"]),
    }
    balance: dict[str, Column] = {
        "in turn": lambda c: _percent(c["ranks"] and c["ranks"]["in_turn"]),
        "levelled": lambda c: _percent(c["ranks"] and c["ranks"]["levelled"]),
        "ordered": lambda c: _percent(c["ranks"] and c["ranks"]["ordered"]),
    }
    work: dict[str, Column] = {
        "FLOPs wasted": lambda c: _percent(c["flops_wasted"]),
        "none of 1": lambda c: f"{c['none']['estimated_speedup']['1']:.2f}",
        "none of 4": lambda c: f"{c['none']['estimated_speedup']['4']:.2f}",
    }
    tables = [_table("Rows", choices, rows), _table("Steps", choices, steps)]
    if ranks:
        tables.append(_table(f"What {ranks} ranks wait for the slowest", choices, balance))
    tables.append(_table("Estimated speed-up over", choices, work))
    return tables


def _about(choice: dict[str, Any]) -> str:
    return "~" if choice["estimated"] else ""


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _notes(content: dict[str, Any]) -> list[str]:
    choices = content["choices"]
    fills = choices[0]["none"]["fill"]
    notes = [
        "rows: waste is the room in them that no sample takes; no packer leaves less than least in "
        "these windows or steps. samples: in a row, their mean and the most. alone: rows with one.",
        "steps: uneven is how much more attention the dearest row takes than the mean row. "
        + _length_of_runs(choices),
        "ranks: how much more attention the slowest rank has than the mean; rows dealt in turn, "
        "levelled within a step, or ordered so that rows of like cost share a step.",
        "speed-up: FLOPs that packing=none with micro-batches of 1 and 4 would compute, over those "
        "of the choice. Arithmetic, not a measurement: as if each FLOP took the same time in any "
        "row, while a GPU is slow on short ones.",
        f"packing=none fills {fills['1']:.3f} of its slots with micro-batches of 1, "
        f"{fills['4']:.3f} with 4.",
    ]
    if any(c["packing"] == "trainer" for c in choices):
        notes.insert(
            1, "The trainer's rows are cut to what they hold: their waste is more rows, not slots."
        )
    parts = [c for c in choices if c["estimated"]]
    if parts:
        which = ", ".join(f"{c['name']} {c['groups_packed']:,} of {c['groups']:,}" for c in parts)
        notes.append(f"~: estimated from a part, spread evenly ({which}); seconds=null packs all.")
    return notes


def _length_of_runs(choices: list[dict[str, Any]]) -> str:
    steps = sorted({c["run_steps"] for c in choices})
    epochs = sorted({round(c["run_epochs"], 2) for c in choices})
    if len(steps) > 1:
        return f"A run takes {steps[0]:,} to {steps[-1]:,} steps, {epochs[-1]:.2f} epochs."
    several = f"{epochs[0]:.2f}" + (f" to {epochs[-1]:.2f}" if len(epochs) > 1 else "")
    return f"A run of {steps[0]:,} steps is {several} epochs."


def _warnings(choices: list[dict[str, Any]]) -> list[str]:
    """Each warning once, with the choices it is about."""
    about: dict[str, list[str]] = {}
    for choice in choices:
        for text in choice["warnings"]:
            about.setdefault(text, []).append(choice["name"])
    everywhere = len(choices)
    return [
        f"warning: {text}" if len(names) == everywhere else f"warning, {', '.join(names)}: {text}"
        for text, names in about.items()
    ]
