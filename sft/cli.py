"""The command line around Hydra: aliases, exit codes, and messages instead of stack traces.

Exit codes: 0 done; 1 the run failed; 2 a setting is wrong; 130 interrupted. Of a sweep: 1 if a job
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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError  # type: ignore[import-untyped]

from data.errors import DataError
from data.packers import ALIASES
from sft.errors import ConfigError, TrainingError
from sft.sweep.run import SweepFailed
from sft.wording import closest, first_line

CONF_DIR = str(Path(__file__).resolve().parent.parent / "conf")

Task = Callable[[DictConfig], Any]

BAD_CONFIG, FAILED, INTERRUPTED = 2, 1, 130

REFUSALS = (ConfigError, HydraException, OmegaConfBaseException, MarkedYAMLError)  # see explain
_SWEEP = "several values are a sweep, one run for each; add -m to ask for that"

# Whether Hydra has come as far as starting a job: what it raises before is about the command line.
_job_started = False


def launch(task: Task) -> None:
    """Run ``task`` under Hydra as the command line asks; exits the process.

    Args:
        task: takes the composed tree.
    """
    sys.argv[1:] = [canonical_override(word) for word in sys.argv[1:]]
    # Hydra would print its own errors with exit code 1; like this it hands them over.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        _refuse_early(sys.argv[1:])
        hydra.main(version_base="1.3", config_path=CONF_DIR, config_name="config")(_guarded(task))()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except REFUSALS as error:
        _exit_with(explain(error, sys.argv[1:]), BAD_CONFIG)
    except (DataError, TrainingError) as error:
        _exit_with(str(error), FAILED)
    except SweepFailed as error:
        _exit_with(str(error), error.exit_code)
    except (OSError, ValueError) as error:
        if _job_started:
            raise
        _exit_with(explain(error, sys.argv[1:]), BAD_CONFIG)


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
            if alone and code == BAD_CONFIG:
                _discard_untouched(Path(HydraConfig.get().runtime.output_dir))
            else:
                _log_failure(error)
            if alone and code is not None:
                _exit_with(str(error), code)
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
    """Replace long upstream packer names by ours: ``packer=first_fit_decreasing`` is ``ffd``."""
    match = re.fullmatch(r"(\+{0,2}packer=)(.*)", word)
    if not match:
        return word
    names = [ALIASES.get(name.strip().lower(), name) for name in match[2].split(",")]
    return match[1] + ",".join(names)


def explain(error: Exception, words: list[str], several: str = _SWEEP) -> str:
    """One message for a person: the key, the value, what is allowed, what to change.

    Args:
        error: of :data:`REFUSALS`, or what Hydra raises before a job starts.
        words: the command line.
        several: what to do about several values for a key.
    """
    text = str(error).strip()
    if isinstance(error, MissingConfigException) and error.options is not None:
        return _explain_missing(error)
    if isinstance(error, OverrideParseException):
        return _explain_syntax(error)
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        why = error.strerror or error
        return f"run_dir={error.filename}: cannot be written ({why}); choose another directory"
    if isinstance(error, MarkedYAMLError):
        at = error.problem_mark
        return f"{f'{at.name}:{at.line + 1}' if at else 'a file'}: is not YAML ({error.problem})"
    if isinstance(error, OmegaConfBaseException):
        key = str(error.full_key or "").replace("hydra.run.dir", "run_dir")
        return f"{key}: {first_line(error)}" if key else first_line(error)
    if match := re.search(r"Could not (?:override|delete)[^']*'([^']*)'", text):
        if unknown := _explain_unknown(match[1].split("=")[0], words):
            return unknown
    if match := re.search(r"keyword argument '(\w+)'.*full_key: (\S+)", text, re.DOTALL):
        if unknown := _explain_unknown(f"{match[2]}.{match[1]}", words):
            return unknown
    match = re.search(r"already at '([^']+)'|Multiple values for (\S+)\.|'\+\+([^'=]+)=", text)
    if match and (given := _word(key := next(filter(None, match.groups())), words)) != key:
        return f"{given}: {key} is there already; leave out the +, as {given.lstrip('+')}"
    if match := re.search(r"Ambiguous value for argument '([^']*)'", text):
        return f"{match[1]}: {several}"
    if text.startswith("Config group override must be"):
        word = next(filter(_chooses_no_option, words), text)
        return f"{word}: a group needs one of its options (--help lists them), or leave it out"
    # Hydra's advice to append a key does not hold here: settings know which keys there are.
    said = [line for line in text.splitlines() if not line.startswith("To append")]
    if isinstance(error.__cause__, OmegaConfBaseException):
        said.append(first_line(error.__cause__))
    return "\n".join(said)


def _explain_missing(error: MissingConfigException) -> str:
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    options = sorted(error.options or [])
    if not group:
        return str(error)
    aliases = ALIASES if group == "packer" else {}
    guess = closest(name.lower(), [*options, *aliases])
    guess = aliases.get(guess or "", guess)
    hint = f" Did you mean {group}={guess}?" if guess else ""
    return f"{group}={name}: there is no such {group}.{hint} Allowed: {', '.join(options)}"


def _explain_syntax(error: OverrideParseException) -> str:
    said = [line for line in error.message.splitlines() if " input " in line or "missing" in line]
    reason = f" ({said[0]})" if said else ""
    return (
        f"{error.override}: cannot be read as key=value{reason}; a value with blanks, brackets or "
        "commas needs quotes within quotes, as 'key=\"value\"'"
    )


def _explain_unknown(key: str, words: Iterable[str]) -> str | None:
    from hydra import compose, initialize_config_dir  # the tree that the key was looked up in

    choices = [w for w in words if "," not in w and _is_group(w.partition("=")[0])]
    ours = [w for w in choices if (Path(CONF_DIR) / f"{w.replace('=', '/')}.yaml").exists()]
    if any(key.startswith(w.partition("=")[0] + ".") for w in choices if w not in ours):
        return None  # of an option in a --config-dir: its keys are not known here
    try:
        with initialize_config_dir(CONF_DIR, version_base="1.3"):
            tree = compose("config", ours, return_hydra_config=key.startswith("hydra."))
    except HydraException:
        return None  # the mistake is in an option's file
    keys = _keys(tree)
    if key in keys:
        return None  # about its value, or not about a key of ours
    section = key.rpartition(".")[0]
    while section and not isinstance(OmegaConf.select(tree, section), DictConfig):
        section = section.rpartition(".")[0]
    siblings = OmegaConf.select(tree, section) if section else tree
    inside = ", ".join(sorted(str(name) for name in siblings if name != "_target_"))
    guess = closest(key, [*keys, *filter(_is_group, os.listdir(CONF_DIR))])
    hint = f" Did you mean {guess}?" if guess else ""
    where = f"in {section}" if section else "at the top level"
    return f"{_word(key, words)}: there is no such key.{hint} Keys {where}: {inside}"


def _word(key: str, words: Iterable[str]) -> str:
    """What was typed for a key."""
    return next((w for w in words if w.lstrip("+~").split("=")[0] == key), key)


def _is_group(name: str) -> bool:
    return bool(re.fullmatch(r"\w+(/\w+)*", name)) and (Path(CONF_DIR) / name).is_dir()


def _chooses_no_option(word: str) -> bool:
    """Whether a group is given what is no name: null, a number."""
    return _is_group(word.partition("=")[0]) and not isinstance(
        OverridesParser.create().parse_override(word).value(), str | list
    )


def _keys(tree: DictConfig, prefix: str = "") -> list[str]:
    """Every key of a tree, its sections too."""
    found: list[str] = []
    for name in map(str, tree):
        found.append(f"{prefix}{name}")
        node = None if OmegaConf.is_missing(tree, name) else tree._get_node(name)
        if isinstance(node, DictConfig):
            found += _keys(node, f"{prefix}{name}.")
    return [k for k in found if not k.endswith("_target_")]


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
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        value = value.strip("'\"")
        if key in ("run_dir", "hydra.run.dir", "hydra.sweep.dir"):
            if value in ("", "null"):
                raise ConfigError(f"{word}: must name a directory")
            if key != "hydra.sweep.dir" and (Path(value) / "run.json").exists():
                raise ConfigError(
                    f"{word}: already holds a run; choose another directory or remove it"
                )
        several = value.startswith("[") and "," in value
        if several and _is_group(key) and key not in ("logger", "experiment"):
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


def _exit_with(message: str, code: int) -> None:
    print(f"stowage: {message}", file=sys.stderr)
    sys.exit(code)
