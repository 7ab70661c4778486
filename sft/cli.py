"""The command line around Hydra: aliases, exit codes, and messages instead of stack traces.

Exit codes: 0 done; 1 the run failed; 2 a setting is wrong; 3 stopped before its end, with a
checkpoint to go on from; 130 interrupted. Of a sweep: 1 if a job
failed; 2 if the sweep, or each of its jobs, was refused for its settings.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError  # type: ignore[import-untyped]

from data.errors import DataError
from data.packers import ALIASES
from sft.errors import ConfigError, RunStopped, TrainingError
from sft.explain import CONF_DIR, explain, is_group
from sft.launch import ALONE, Place, place_of_this_process
from sft.sweep.run import SweepFailed

Task = Callable[[DictConfig], Any]

BAD_CONFIG, FAILED, STOPPED, INTERRUPTED = 2, 1, 3, 130

REFUSALS = (ConfigError, HydraException, OmegaConfBaseException, MarkedYAMLError)  # see explain

# Only the first process of a run writes into its directory, Hydra's files included.
_FOLLOWER = ("hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=disabled")

_SECONDS_TO_SPEAK = 10

_place = ALONE

# Whether Hydra has come as far as starting a job: what it raises before is about the command line.
_job_started = False


def launch(task: Task) -> None:
    """Run ``task`` under Hydra as the command line asks; exits the process.

    Args:
        task: takes the composed tree.
    """
    global _place
    sys.argv[1:] = [canonical_override(word) for word in sys.argv[1:]]
    # Hydra would print its own errors with exit code 1; like this it hands them over.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        _place = place_of_this_process()
        _refuse_early(sys.argv[1:])
        if not _place.leads:
            _add_overrides(sys.argv, _FOLLOWER)
        hydra.main(version_base="1.3", config_path=CONF_DIR, config_name="config")(_guarded(task))()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except REFUSALS as error:
        _exit_with(explain(error, sys.argv[1:]), BAD_CONFIG, error)
    except (DataError, TrainingError) as error:
        _exit_with(str(error), FAILED, error)
    except SweepFailed as error:
        _exit_with(str(error), error.exit_code)
    except (OSError, ValueError) as error:
        if _job_started:
            raise
        _exit_with(explain(error, sys.argv[1:]), BAD_CONFIG)


def _add_overrides(words: list[str], more: Iterable[str]) -> None:
    """Put overrides behind the last that is there: Hydra takes them only side by side."""
    last = max((i for i, w in enumerate(words) if "=" in w and w[0] != "-"), default=len(words) - 1)
    words[last + 1 : last + 1] = more


def _guarded(task: Task) -> Task:
    """The task as Hydra runs it: alone, its errors end the process with one message.

    In a sweep they are the launcher's to collect, so that the other jobs go on. What stopped a job
    is in its log at once, with the stack trace.
    """

    @functools.wraps(task)
    def run(tree: DictConfig) -> Any:
        job_starts()
        alone = HydraConfig.get().mode is not RunMode.MULTIRUN
        if not alone:
            # Each job of a sweep has a directory that is named after what differs.
            tree.run_dir = HydraConfig.get().runtime.output_dir
        try:
            return task(tree)
        except Exception as error:
            code = exit_code_of(error)
            if alone and code == BAD_CONFIG and _place.leads:
                _discard_untouched(Path(HydraConfig.get().runtime.output_dir))
            elif code != STOPPED:
                _log_failure(error)
            if alone and code is not None:
                _exit_with(str(error), code, error)
            raise

    return run


def job_starts() -> None:
    """From here on an error that is not ours is a mistake in the program, with a stack trace."""
    global _job_started
    _job_started = True


def exit_code_of(error: Exception) -> int | None:
    """What a run exits with; None for an error whose message is not meant for a user."""
    if isinstance(error, ConfigError):
        return BAD_CONFIG
    if isinstance(error, RunStopped):
        return STOPPED
    return FAILED if isinstance(error, DataError | TrainingError) else None


def _log_failure(error: Exception) -> None:
    """Into the job's log only: on the console it is said by whoever ends the process."""
    trace = (type(error), error, error.__traceback__)
    record = logging.LogRecord(
        "sft", logging.ERROR, __file__, 0, "the run failed: %s", (error,), trace
    )
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler) and handler.stream is not None:
            # A disk that is full has no room for this either, and the error is the message.
            with contextlib.suppress(OSError):
                handler.acquire()
                handler.stream.write(handler.format(record) + handler.terminator)
                handler.flush()
            handler.release()


def canonical_override(word: str) -> str:
    """Replace what is short or of upstream by our keys and names.

    ``packer=first_fit_decreasing`` is ``packer=ffd``, ``resume=auto`` is ``resume.source=auto``.
    """
    if match := re.fullmatch(r"resume=([^{].*)", word):
        return f"resume.source={match[1]}"
    match = re.fullmatch(r"(\+{0,2}packer=)(.*)", word)
    if not match:
        return word
    names = [ALIASES.get(name.strip().lower(), name) for name in match[2].split(",")]
    return match[1] + ",".join(names)


def log_library_warnings() -> None:
    """Send what libraries warn of into the run's log; call before importing torch.

    Megatron-Core alone has a screenful to say about extras that are not installed.
    """
    logging.captureWarnings(True)
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


def _refuse_early(words: Iterable[str]) -> None:
    """Refuse what Hydra would accept, and act upon, before the settings are seen.

    It writes into the run's directory first, and of two options of a group it takes the last.
    """
    words = list(words)
    resumes = any(
        word.startswith("resume.source=") and not word.endswith("=never") for word in words
    )
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        value = value.strip("'\"")
        if key in ("run_dir", "hydra.run.dir", "hydra.sweep.dir"):
            if value in ("", "null"):
                raise ConfigError(f"{word}: must name a directory")
            taken = key != "hydra.sweep.dir" and (Path(value) / "run.json").exists()
            if taken and not resumes:
                raise ConfigError(
                    f"{word}: already holds a run; choose another directory or remove it, or use "
                    "resume=auto to go on with it"
                )
        several = value.startswith("[") and "," in value
        if several and is_group(key) and key not in ("logger", "experiment"):
            sweep = f"-m {key}={value.strip('[]').replace(' ', '')}"
            raise ConfigError(f"{word}: takes one option; to try several, sweep: {sweep}")


def _discard_untouched(run_dir: Path) -> None:
    """Remove the directory of a run that was refused, if all it holds is what Hydra wrote."""
    if {p.name for p in run_dir.iterdir()} <= {".hydra", "train.log"}:
        logging.shutdown()
        shutil.rmtree(run_dir / ".hydra", ignore_errors=True)
        (run_dir / "train.log").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a link, a mount point: it is empty now
            run_dir.rmdir()


def _exit_with(message: str, code: int, error: Exception | None = None) -> None:
    if _is_heard(_place, error):
        who = "" if _place.leads else f"rank {_place.rank}: "
        print(f"stowage: {who}{message}", file=sys.stderr, flush=True)
    else:
        # torchrun kills all others when the first process ends: let it be the one that says why.
        time.sleep(_SECONDS_TO_SPEAK)
    sys.exit(code)


def _is_heard(place: Place, error: Exception | None) -> bool:
    """Whether a process is to say why it ends: what all meet alike, the first one says."""
    if place.leads:
        return True
    # Data is refused by all at once, and a setting is wrong for every process of a machine.
    alike = isinstance(error, DataError) or (isinstance(error, REFUSALS) and place.local_rank > 0)
    return not alike and not getattr(error, "said_by_rank_0", False)
