"""What the application raises when the user can do something about it."""

from __future__ import annotations


class ConfigError(Exception):
    """A setting cannot be used. The message names the key, its value, and what to change."""


class TrainingError(Exception):
    """Training cannot go on: a loss that is not finite, say. The message is complete."""


class RunStopped(Exception):
    """A run ended before its last step because it was asked to, and left a checkpoint."""


def said_by_first[E: Exception](error: E, rank: int) -> E:
    """Mark an error that every process of a run raises alike: the first one's words are enough.

    Args:
        error: to be raised.
        rank: of this process.
    """
    error.said_by_rank_0 = rank > 0  # type: ignore[attr-defined]
    return error
