"""One job of a sweep as a process of its own: started, listened to, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from sft.sweep.outcome import Outcome, last_words

_SECONDS_TO_STOP = 15
_REMEMBERED_BYTES = 32_768


def run_process(command: Sequence[str]) -> Outcome:
    """Run a job until it ends; what it says goes to this process's console.

    Interrupted, it interrupts the job, waits for its end, and raises again.

    Args:
        command: program and words.
    """
    sys.stdout.flush()
    # A process group of its own: Ctrl-C reaches the job once, from here, and what it leaves
    # behind can be ended with it.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0
    )
    listener = _Listener(process)
    try:
        code = process.wait()
    except BaseException:
        _interrupt(process)
        raise
    finally:
        _end_group(process.pid)
        listener.join()
    if code < 0:
        reason = f"killed by signal {-code} ({signal.Signals(-code).name})"
        return Outcome(exit_code=128 - code, error=reason, said=listener.said)
    error = last_words(listener.said) or f"ended with exit code {code}" if code else None
    return Outcome(exit_code=code, error=error, said=listener.said)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    # Who is started in the background of a shell ignores Ctrl-C, and so do its children.
    deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    process.send_signal(signal.SIGTERM if deaf else signal.SIGINT)
    # A second Ctrl-C ends the waiting, and the job with it.
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(_SECONDS_TO_STOP)
    if process.poll() is None:
        process.kill()
        process.wait()


def _end_group(group: int) -> None:
    """End what a job has left running, workers of the loader say: the next job is to be alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


class _Listener:
    """Passes a process's standard error on, and remembers its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._stream = process.stderr
        self._heard = b""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def said(self) -> str:
        return self._heard.decode(errors="replace")

    def join(self) -> None:
        # Somebody who has left the process group may hold the other end open for ever.
        self._thread.join(timeout=5)

    def _listen(self) -> None:
        with self._stream:
            while chunk := os.read(self._stream.fileno(), 65_536):
                self._heard = (self._heard + chunk)[-_REMEMBERED_BYTES:]
                sys.stderr.write(chunk.decode(errors="replace"))
                sys.stderr.flush()


def own_script() -> str:
    """The program that this process runs, to be started again."""
    return str(Path(sys.argv[0]).absolute())
