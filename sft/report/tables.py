"""The tables, as words: what the page and the Markdown show, and the flat one for machines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sft.report.choices import Choice
from sft.report.content import Content, Row, configuration
from sft.report.measures import PHASES
from sft.report.statistics import Spread

NOTHING = "–"  # noqa: RUF001


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A value, its spread or a remark beside it, and whether it is a number."""

    text: str
    beside: str = ""
    number: bool = True

    def __str__(self) -> str:
        if self.beside and not self.number:
            return f"{self.text} ({self.beside})"
        return f"{self.text} {self.beside}".strip()


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns and rows; the first column names the row."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[Cell]]

    @property
    def widths(self) -> list[int]:
        """How much room, in characters, each column needs beside its values to align them."""
        columns = zip(*self.rows, strict=True)
        return [max(len(cell.beside) for cell in column) for column in columns]


Read = Callable[[Row], Cell]


def speed_table(content: Content) -> Table:
    """How fast, and where the time goes."""
    beside = f"beside {content.baseline}" if content.baseline else "beside none"
    columns: list[tuple[str, Read]] = [
        ("choice", _name(content)),
        ("seeds", _seeds),
        ("real tokens/s", _figure("real_tokens_per_s", 0)),
        (beside, lambda row: _beside(row, content.baseline)),
        ("loss tokens/s", _figure("loss_tokens_per_s", 0)),
        ("slot tokens/s", _figure("slot_tokens_per_s", 0)),
        ("MFU", _figure("mfu", 2, 100, " %")),
        ("forward, backward", _figure("forward_backward_share", 1, 100, " %", plain=True)),
        ("optimizer", _figure("optimizer_share", 1, 100, " %", plain=True)),
        ("packing", _figure("packing_share", 1, 100, " %", plain=True)),
        ("data wait", _figure("data_wait_share", 1, 100, " %", plain=True)),
    ]
    note = (
        "Mean ± standard deviation over seeds. The ratio is taken within a seed; in brackets its "
        "95 % interval, which holds for all pairs at once. The last four columns split a step's "
        "time."
    )
    return _table("Speed", note, columns, content.rows)


def packing_table(content: Content) -> Table:
    """How full the rows are, and what that costs."""
    columns: list[tuple[str, Read]] = [
        ("choice", _name(content)),
        ("packing", lambda row: Cell(text=row.choice.mode, number=False)),
        ("packer", lambda row: Cell(text=row.choice.packer or NOTHING, number=False)),
        ("micro-batch", lambda row: _text(micro_batch(row.choice))),
        ("packs over", lambda row: Cell(text=window(row.choice), number=False)),
        ("fill", _figure("fill", 4)),
        ("rows over the bound", _figure("waste", 2, 100, " %")),
        ("samples per microbatch", _figure("samples_per_microbatch", 2)),
        ("attention imbalance", _figure("attention_imbalance", 3)),
        ("peak memory, GiB", _figure("peak_memory_bytes", 2, 2.0**-30)),
    ]
    note = (
        "Fill: real tokens per slot. The bound: no packer needs fewer rows. Attention imbalance: "
        "how far a step's costliest microbatch is above its mean, by squared lengths."
    )
    return _table("Packing", note, columns, content.rows)


def learning_table(content: Content) -> Table:
    """What was learned, and how soon."""
    common = content.common
    at = f"{common.real_tokens:,}" if common.real_tokens is not None else "equal"
    loss = f"{common.val_loss:.4f}" if common.val_loss is not None else "a common"
    columns: list[tuple[str, Read]] = [
        ("choice", _name(content)),
        (f"validation loss at {at} real tokens", _figure("val_loss", 4)),
        (f"seconds to loss {loss}", _figure("seconds_to_loss", 1)),
        ("real tokens per step", _figure("real_tokens_per_step", 0)),
        ("optimizer steps", _figure("steps", 0, plain=True)),
        ("wall time, s", _figure("wall_seconds", 0)),
    ]
    note = (
        "Losses are compared at the most real tokens that all runs reached, and times to the "
        "lowest loss that all reached; both lie on the line between two validations. Wall time "
        "includes start-up and validations."
    )
    return _table("Learning", note, columns, content.rows)


def accounting_table(content: Content) -> Table:
    """What became of the conversations, a mean over the runs of a choice."""
    columns = ["choice", "read", "kept", "trained", "dropped", "why", "cut", "tokens cut off"]
    lines: dict[tuple[Cell, ...], list[str]] = {}
    for choice in content.choices:
        told = [t for r in choice.runs if (t := (r.samples or {}).get("train"))]
        numbers = [_mean(told, name) for name in ("read", "kept", "trained", "dropped_total")]
        reasons = dict.fromkeys(k for t in told for k in t.get("dropped") or {})
        why = [f"{_mean([t['dropped'] for t in told], k).text} {k}" for k in reasons]
        reason = Cell(text="; ".join(why) or NOTHING, number=False)
        cut = [_mean(told, "truncated_samples"), _mean(told, "truncated_tokens")]
        lines.setdefault((*numbers, reason, *cut), []).append(choice.label)
    # Most choices read the same conversations and drop the same.
    rows = [
        [Cell(text=_who(labels, content), number=False), *cells] for cells, labels in lines.items()
    ]
    note = (
        "Conversations of the training stream, per run. Kept and not trained are those that the "
        "loader had read ahead when the last step was done."
    )
    return Table(title="What was dropped", note=note, columns=columns, rows=rows)


def _who(labels: Sequence[str], content: Content) -> str:
    if len(labels) == len(content.choices) > 1:
        return f"all {len(labels)} choices"
    return "; ".join(labels)


def prepared(content: Content) -> list[str]:
    """What preparing the data left out, each account once."""
    told = []
    for run in content.runs:
        notes = (run.samples or {}).get("prepared") or {}
        dropped = notes.get("dropped")
        if isinstance(dropped, dict) and notes.get("read") is not None:
            why = "; ".join(f"{n:,} {reason}" for reason, n in dropped.items())
            told.append(f"{notes['read']:,} conversations in the data set, left out: {why}.")
    return list(dict.fromkeys(told))


def configuration_table(content: Content) -> Table:
    """The keys that are not the same everywhere."""
    rows = [
        [Cell(text=choice.label, number=False), *(Cell(text=v, number=False) for v in values)]
        for choice, values in zip(content.choices, configuration(content), strict=True)
    ]
    note = "Only keys whose values differ; a dash where a key is not there."
    columns = ["choice", *content.differing]
    return Table(title="How the configurations differ", note=note, columns=columns, rows=rows)


def micro_batch(choice: Choice) -> str:
    """Conversations per microbatch; a packed row is its own."""
    return str(choice.settings.get("train.micro_batch_size")) if choice.mode == "none" else NOTHING


def window(choice: Choice) -> str:
    """Over how many samples the packer chooses."""
    if choice.mode == "loader":
        return f"{choice.settings.get('packing.buffer_size')} samples"
    return "one step" if choice.mode == "trainer" else NOTHING


_FLAT = (
    "fill", "waste", "samples_per_microbatch", "slot_tokens_per_s", "real_tokens_per_s",
    "loss_tokens_per_s", *(f"{phase}_share" for phase in PHASES), "attention_imbalance", "mfu",
    "model_flops_per_s", "peak_memory_bytes", "real_tokens_per_step", "steps", "val_loss",
    "seconds_to_loss", "wall_seconds",
)  # fmt: skip


def flat_table(content: Content) -> dict[str, Any]:
    """``{"columns", "rows"}`` of plain values, null for what is not known."""
    columns = ["choice", "packing", "packer", "micro_batch", "window", "seeds", "runs", "place"]
    columns += ["speed_beside_none", "speed_beside_none_low", "speed_beside_none_high"]
    columns += [f"{name}{suffix}" for name in _FLAT for suffix in ("", "_sd")]
    rows = []
    for row in content.rows:
        choice, ratio = row.choice, row.beside
        values: list[Any] = [choice.label, choice.mode, choice.packer, micro_batch(choice)]
        values += [window(choice), ", ".join(map(str, choice.seeds)), len(choice.runs), row.place]
        ends = (ratio.value, ratio.low, ratio.high) if ratio else (None, None, None)
        values += [None if v is None else math.exp(v) for v in ends]
        for name in _FLAT:
            spread = row.spreads.get(name)
            values += [spread.mean, spread.sd] if spread else [None, None]
        rows.append(values)
    return {"columns": columns, "rows": rows}


def _table(title: str, note: str, columns: list[tuple[str, Read]], rows: Sequence[Row]) -> Table:
    """A column that nobody measured is left out."""
    cells = [[read(row) for _, read in columns] for row in rows]
    keep = [i for i in range(len(columns)) if i == 0 or any(c[i].text != NOTHING for c in cells)]
    return Table(
        title=title,
        note=note,
        columns=[columns[i][0] for i in keep],
        rows=[[line[i] for i in keep] for line in cells],
    )


def _name(content: Content) -> Read:
    marks = {"best": "fastest", "joint": "joint fastest"}
    if content.mostly_joint:
        marks = {"slower": "slower"}

    def read(row: Row) -> Cell:
        remark = marks.get(row.place or "", "") if row.choice.runs else "no finished run"
        return Cell(text=row.choice.label, beside=remark, number=False)

    return read


def _seeds(row: Row) -> Cell:
    seeds, runs = len(row.choice.seeds), len(row.choice.runs)
    return Cell(text=f"{seeds}", beside=f"({runs} runs)" if runs > seeds else "")


def _text(text: str) -> Cell:
    return Cell(text=text)


def _figure(
    name: str, digits: int, factor: float = 1, unit: str = "", *, plain: bool = False
) -> Read:
    def read(row: Row) -> Cell:
        return figure(row.spreads.get(name), digits, factor, unit, plain=plain)

    return read


def figure(
    spread: Spread | None, digits: int, factor: float = 1, unit: str = "", *, plain: bool = False
) -> Cell:
    """A mean and its standard deviation; ``plain`` shows the mean alone."""
    if spread is None:
        return Cell(text=NOTHING)
    text = f"{spread.mean * factor:,.{digits}f}{unit}"
    if plain or spread.sd is None:
        return Cell(text=text)
    sd = f"{spread.sd * factor:,.{digits}f}"
    # A spread that is none at the digits shown says nothing.
    return Cell(text=text, beside=f"± {sd}" if float(sd.replace(",", "")) else "")


def _beside(row: Row, baseline: str | None) -> Cell:
    if row.choice.label == baseline:
        return Cell(text="1", beside="baseline")
    if row.beside is None:
        return Cell(text=NOTHING)
    text = f"{math.exp(row.beside.value):.3f}"
    if row.beside.low is None:
        return Cell(text=text)
    return Cell(
        text=text, beside=f"({math.exp(row.beside.low):.3f}, {math.exp(row.beside.high):.3f})"
    )


def _mean(told: Sequence[dict[str, Any]], name: str) -> Cell:
    return figure(Spread.of([t.get(name) for t in told]), 0, plain=True)
