"""When a run ends before its last step: a time limit, or a signal. No torch here."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# What Slurm, Kubernetes and people send; Slurm's --signal can be either.
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stop:
    """Whether to save and end after the step at hand.

    Time is taken from a clock that nobody can set, so a change of the machine's date does
    nothing.
    """

    def __init__(self, after_seconds: float | None, started: float | None = None) -> None:
        """Nothing is caught yet, see :meth:`listening`.

        Args:
            after_seconds: time after which the run must have ended; None: no limit.
            started: when it did, on the clock of ``time.perf_counter``; None: now.
        """
        self._started = time.perf_counter() if started is None else started
        self._limit = after_seconds
        self._longest = {"step": 0.0, "save": 0.0}
        self._signal: str | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take note of signals; a second one of a kind does what it did before."""
        own = os.getpid()

        def note(number: int, _frame: FrameType | None) -> None:
            signal.signal(number, before[signal.Signals(number)])
            if os.getpid() == own:
                self._signal = signal.Signals(number).name
            else:  # a process that was forked to load data
                os.kill(os.getpid(), number)

        before = {number: signal.signal(number, note) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def took(self, what: str, seconds: float) -> None:
        """Note how long a ``step`` (with the validation after it) or a ``save`` was."""
        self._longest[what] = max(self._longest[what], seconds)

    @property
    def reason(self) -> str | None:
        """Why to end now, for people; None: go on."""
        if self._signal is not None:
            return self._signal
        if self._limit is None:
            return None
        # There must be time for one more step and for the checkpoint, each as long as the longest.
        needed = sum(self._longest.values()) + self._longest["save"]
        left = self._limit - (time.perf_counter() - self._started)
        return "train.stop_after" if left <= needed else None
