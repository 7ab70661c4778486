"""How a job ended, and why, in a line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended.

    Attributes:
        exit_code: 0, or as a shell has it.
        error: why it failed, in a line; None if it did not.
        said: what it wrote to standard error, or the end of that.
    """

    exit_code: int
    error: str | None = None
    said: str = ""


def last_words(text: str) -> str | None:
    """The line that says why: the exception below the last stack trace, or our message.

    Args:
        text: what a process wrote to standard error.
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call")]
    if starts:
        raised = [line for line in lines[starts[-1] + 1 :] if not line.startswith(" ")]
        if raised:
            return raised[0]
    ours = [line for line in lines if line.startswith("stowage: ")]
    if ours:
        return ours[-1].removeprefix("stowage: ")
    return lines[-1].strip() if lines else None
