"""Running the jobs of a sweep one after the other, and saying how each went."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from sft.sweep.outcome import Outcome
from sft.sweep.record import DONE, FAILED, NOT_STARTED, JobRecord, SweepRecord, now

_INTERRUPTED, _TERMINATED = 130, 143


class SweepFailed(Exception):
    """Jobs of a sweep failed. The message is complete.

    Attributes:
        exit_code: 2 if every job was refused for its settings, else 1.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_jobs(
    record: SweepRecord,
    jobs: Sequence[JobRecord],
    start: Callable[[JobRecord], Outcome],
    *,
    fail_fast: bool,
    log_name: str,
) -> None:
    """Run jobs and keep ``sweep.json`` up to date; a job that fails stops no other.

    Args:
        record: of the sweep.
        jobs: of the record, to run in this order.
        start: runs a job to its end.
        fail_fast: stop at the first job that fails.
        log_name: the log in a job's directory, which tells why it failed.
    """
    record.write()
    try:
        with _termination_interrupts():
            for job in jobs:
                _run_job(record, job, start, log_name)
                if fail_fast and job.status == FAILED:
                    break
    finally:
        record.finished_at = now()
        record.write()


def _run_job(
    record: SweepRecord, job: JobRecord, start: Callable[[JobRecord], Outcome], log_name: str
) -> None:
    which = f"job {job.order} of {len(record.jobs)}"
    words = shlex.join(job.overrides) or "as configured"
    print(f"\n=== {which}{_time_left(record, job)}: {words}", flush=True)
    started = time.perf_counter()
    # Should this process be killed, the file says which job was running.
    job.status, job.error = FAILED, "the sweep ended while this job was running"
    record.write()
    try:
        outcome = start(job)
    except BaseException as error:
        stopped = isinstance(error, SystemExit) and error.code == _TERMINATED
        code = _TERMINATED if stopped else _INTERRUPTED
        outcome = Outcome(exit_code=code, error="terminated" if stopped else "interrupted")
        raise
    finally:
        job.wall_seconds = round(time.perf_counter() - started, 3)
        job.exit_code, job.error = outcome.exit_code, outcome.error
        job.status = FAILED if outcome.exit_code else DONE
        if job.status == FAILED:
            complete_log(record.directory / job.name / log_name, outcome)
        record.write()
        ended = job.status if job.error is None else f"{job.status}: {job.error}"
        print(f"=== {which}: {ended}, {job.wall_seconds:.1f} s", flush=True)


def _time_left(record: SweepRecord, job: JobRecord) -> str:
    """How long a sweep of many minutes will go on, if the jobs to come are like those before."""
    before = [other.wall_seconds for other in record.jobs if other.order < job.order]
    if not before:
        return ""
    minutes = sum(before) / len(before) * (len(record.jobs) - len(before)) / 60
    return f", about {minutes:.0f} min left" if minutes >= 2 else ""


def complete_log(log: Path, outcome: Outcome) -> None:
    """See to it that a failed job's own log says why: one that is killed, say, could not."""
    error = outcome.error or ""
    with suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and error in log.read_text(encoding="utf-8", errors="replace"):
            return
        with log.open("a", encoding="utf-8") as file:
            file.write(outcome.said if error in outcome.said else f"{outcome.said}{error}\n")


def closing_table(record: SweepRecord) -> Iterator[str]:
    """The lines that close a sweep: each job, and why those failed that did."""
    count = {
        status: sum(job.status == status for job in record.jobs)
        for status in (DONE, FAILED, NOT_STARTED)
    }
    seconds = sum(job.wall_seconds for job in record.jobs)
    said = ", ".join(f"{n} {status}" for status, n in count.items() if n)
    yield f"sweep of {len(record.jobs)} jobs: {said}, {seconds:.0f} s"
    width = len(str(len(record.jobs)))
    for job in record.jobs:
        yield f"  {job.order:>{width}}  {job.status:<11}  {job.wall_seconds:7.1f} s  {job.name}"
        if job.error:
            yield f"  {'':{width}}  {job.error}"
    yield f"results: {record.directory}"


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """A termination ends the running job too, as Ctrl-C does: else it would go on alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(signum: int, frame: FrameType | None) -> None:
        sys.exit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
