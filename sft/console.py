"""What a person sees while a run goes on: a header, a live line, a table at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sft.loggers.base import Metrics


class RunConsole:
    """The console of one run.

    On a terminal, one live line; elsewhere (a log file, Slurm), a line every so many steps.
    """

    def __init__(
        self, *, log_every: int, console: Console | None = None, silent: bool = False
    ) -> None:
        """Nothing is shown yet.

        Args:
            log_every: steps between two lines where the console is no terminal.
            console: where to; None: standard output.
            silent: show nothing, in all processes of a run but the first.
        """
        self._console = console or Console(quiet=silent)
        self._log_every = log_every
        self._progress: Progress | None = None
        self._task: Any = None

    def header(self, facts: Mapping[str, str]) -> None:
        """Print what is about to run, a fact a line."""
        table = Table.grid(padding=(0, 2))
        for name, value in facts.items():
            table.add_row(f"[bold]{name}", value)
        self._console.print(table)
        self._console.print()

    def say(self, text: str) -> None:
        """Print a line; above the live one, where there is one."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def start(self, steps: int, done: int = 0) -> None:
        """Begin the live line, with so many steps done."""
        self._progress = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[line]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._progress.start()
        self._task = self._progress.add_task("training", total=steps, completed=done, line="")

    def step(self, metrics: Metrics, *, step: int, steps: int, eta_seconds: float) -> None:
        """Show a step."""
        line = (
            f"loss {metrics['loss']:.4f}  lr {metrics['lr']:.2e}  "
            f"grad {metrics['grad_norm']:.2f}  "
            f"{metrics['real_tokens_per_s']:,.0f} real tokens/s  fill {metrics['fill']:.3f}"
        )
        if self._progress is not None:
            self._progress.update(self._task, completed=step, line=line)
        if not self._console.is_terminal and (step % self._log_every == 0 or step == steps):
            self.say(f"step {step}/{steps}  {line}  ETA {_clock(eta_seconds)}")

    def stop(self) -> None:
        """End the live line; its last state stays on the screen."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def summary(self, rows: Mapping[str, str]) -> None:
        """Print the closing table."""
        table = Table(show_header=False, title="Summary", title_justify="left")
        for name, value in rows.items():
            table.add_row(name, value)
        self._console.print()
        self._console.print(table)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
