"""``report.md``: what the page shows, where only text and pictures can be shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sft.report.content import Content
from sft.report.machine import link
from sft.report.prose import caveats, fairness_line, machine_lines, noise_lines, told
from sft.report.tables import (
    Table,
    accounting_table,
    configuration_table,
    learning_table,
    packing_table,
    prepared,
    speed_table,
)


def to_markdown(content: Content, output: Path, plots: dict[str, str]) -> str:
    """The text of ``report.md``.

    Args:
        content: what to say.
        output: where the file will be; links are relative to it.
        plots: the pictures beside it, by file name.
    """
    parts = [
        "# Side by side",
        f"{escape(content.verdict.speed)} {escape(content.verdict.learning)}",
        *(escape(line) for line in caveats(content)),
        "## Is it fair?",
        escape(fairness_line(content)),
        *_findings(content),
        "## The numbers",
        *_picture("speed.png", plots),
        *_table(speed_table(content)),
        *(escape(line) for line in noise_lines(content)),
        *_table(packing_table(content)),
        *_table(learning_table(content)),
        "## Curves",
        "Mean over seeds; the band is one standard deviation."
        + (f" Training loss: means of {content.smoothing} steps." if content.smoothing > 1 else ""),
        *_picture("validation_loss.png", plots),
        *_picture("learning_apart.png", plots),
        *_picture("training_loss.png", plots),
        "## Rows and lengths",
        *_picture("rows.png", plots),
        *_picture("lengths.png", plots),
        *_table(accounting_table(content), level=2),
        *(escape(line) for line in prepared(content)),
        *_failures(content, output),
        *(_table(configuration_table(content), level=2) if content.differing else []),
        "## On what, and how to repeat it",
        "\n".join(f"- {escape(line)}" for line in machine_lines(content)),
        _code("\n".join(content.commands)),
        "\n".join(f"- {escape(note)}" for note in content.notes),
        f"Written {content.written_at}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Text that Markdown leaves as it is."""
    text = re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _findings(content: Content) -> list[str]:
    lines = []
    for finding in content.findings:
        kind = "" if finding.unfair else " (worth knowing)"
        lines.append(f"- **{escape(finding.what)}**{kind}: {escape(finding.why)}.")
        lines += [f"  - {escape(value)}: {escape(labels)}" for value, labels in told(finding)]
    return ["\n".join(lines)] if lines else []


def _table(table: Table, level: int = 3) -> list[str]:
    if not table.rows:
        return []
    numbers = [cell.number for cell in table.rows[0]]
    lines = [
        _line([escape(column) for column in table.columns]),
        _line(["---:" if number else "---" for number in numbers]),
        *(_line([escape(str(cell)) for cell in row]) for row in table.rows),
    ]
    return [f"{'#' * level} {table.title}", "\n".join(lines), escape(table.note)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _picture(name: str, plots: dict[str, str]) -> list[str]:
    return [f"![{plots[name]}]({name})"] if name in plots else []


def _failures(content: Content, output: Path) -> list[str]:
    if not content.failures:
        return []
    lines = [
        f"- [{escape(f.name)}]({link(f.path, output)}): {escape(f.reason)}"
        for f in content.failures
    ]
    return ["## Failed or missing", "\n".join(lines)]


def _code(commands: str) -> str:
    return f"```\n{commands}\n```" if commands else ""
