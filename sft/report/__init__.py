"""The report: runs put side by side, and which choice to use, with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["write_report"]


def write_report(directories: Sequence[Path], output: Path) -> Path:
    """Write ``report.html``, ``report.md``, ``report.json`` and the plots.

    Args:
        directories: every run below them is in the report.
        output: the directory to write into; it is made where it is not there.

    Returns:
        The path of ``report.html``.

    Raises:
        ConfigError: there is no run below the directories, or ``output`` cannot be written.
    """
    # Plotting and statistics take a second to import; whoever only trains does not wait for them.
    from sft.report.write import write_report as write

    return write(directories, output)
