"""The command line around Hydra: aliases, exit codes, and messages instead of stack traces.

Exit codes: 0 done; 1 the run failed; 2 a setting is wrong; 130 interrupted.
"""

from __future__ import annotations

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
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data.errors import DataError
from data.packers import ALIASES
from sft.config import closest
from sft.errors import ConfigError, TrainingError

CONF_DIR = str(Path(__file__).resolve().parent.parent / "conf")

Task = Callable[[DictConfig], Any]

BAD_CONFIG, FAILED, INTERRUPTED = 2, 1, 130

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
        _refuse_taken(sys.argv[1:])
        hydra.main(version_base="1.3", config_path=CONF_DIR, config_name="config")(_guarded(task))()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        _exit_with(explain(error, sys.argv[1:]), BAD_CONFIG)
    except (DataError, TrainingError) as error:
        _exit_with(str(error), FAILED)
    except ValueError as error:
        if _job_started:
            raise
        _exit_with(explain(error, sys.argv[1:]), BAD_CONFIG)


def _guarded(task: Task) -> Task:
    """The task as Hydra runs it: alone, its errors end the process with one message.

    In a sweep they are Hydra's to collect, so that the other jobs go on.
    """

    @functools.wraps(task)
    def run(tree: DictConfig) -> Any:
        global _job_started
        _job_started = True
        try:
            return task(tree)
        except ConfigError as error:
            if HydraConfig.get().mode is RunMode.MULTIRUN:
                raise
            _discard_untouched(Path(HydraConfig.get().runtime.output_dir))
            _exit_with(str(error), BAD_CONFIG)
        except (DataError, TrainingError) as error:
            if HydraConfig.get().mode is RunMode.MULTIRUN:
                raise
            _exit_with(str(error), FAILED)

    return run


def canonical_override(word: str) -> str:
    """Replace long upstream packer names by ours: ``packer=first_fit_decreasing`` is ``ffd``."""
    match = re.fullmatch(r"(\+{0,2}packer=)(.*)", word)
    if not match:
        return word
    names = [ALIASES.get(name.strip().lower(), name) for name in match[2].split(",")]
    return match[1] + ",".join(names)


def explain(error: Exception, words: Iterable[str]) -> str:
    """One message for a person: the key, the value, what is allowed, what to change.

    Args:
        error: ours, Hydra's or OmegaConf's.
        words: the command line.
    """
    if isinstance(error, MissingConfigException) and error.options is not None:
        return _explain_missing(error)
    words = list(words)
    text = str(error).strip()
    match = re.search(r"Could not (?:override|append|delete)[^']*'([^']*)'", text)
    if match:
        return _explain_override(match[1].split("=")[0].lstrip("+~"), words, text)
    null_group = next((w for w in words if re.fullmatch(r"[a-z_/]+=null", w)), None)
    if text.startswith("Config group override must be") and null_group:
        return f"{null_group}: a group needs one of its options; --help lists them"
    cause = error.__cause__
    return f"{text}\n{cause}" if isinstance(cause, OmegaConfBaseException) else text


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


def _explain_override(key: str, words: Iterable[str], text: str) -> str:
    from hydra import compose, initialize_config_dir  # the tree that the key was looked up in

    given = next((w for w in words if w.lstrip("+~").split("=")[0] == key), key)
    try:
        with initialize_config_dir(CONF_DIR, version_base="1.3"):
            keys = _keys(compose("config"))
    except HydraException:
        return text
    guess = closest(key, keys)
    hint = f" Did you mean {guess}?" if guess else ""
    section = key.rpartition(".")[0]
    inside = sorted(k for k in keys if k.rpartition(".")[0] == section) or sorted(
        {k.split(".")[0] for k in keys}
    )
    return f"{given}: there is no such key.{hint} Keys there: {', '.join(inside)}"


def _keys(tree: DictConfig, prefix: str = "") -> list[str]:
    found: list[str] = []
    for name in map(str, tree):
        key = f"{prefix}{name}"
        node = None if OmegaConf.is_missing(tree, name) else tree._get_node(name)
        found += _keys(node, f"{key}.") if isinstance(node, DictConfig) else [key]
    return [k for k in found if not k.endswith("_target_")]


def log_library_warnings() -> None:
    """Send what libraries warn of into the run's log; call before importing torch.

    Megatron-Core alone has a screenful to say about extras that are not installed.
    """
    logging.captureWarnings(True)
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


def _refuse_taken(words: Iterable[str]) -> None:
    """Refuse a named directory that holds a run, before Hydra writes its files into it."""
    for word in words:
        key, _, value = word.partition("=")
        if key in ("run_dir", "hydra.run.dir") and (Path(value) / "run.json").exists():
            raise ConfigError(f"{word}: already holds a run; choose another directory or remove it")


def _discard_untouched(run_dir: Path) -> None:
    """Remove the directory of a run that was refused, if all it holds is what Hydra wrote."""
    if {p.name for p in run_dir.iterdir()} <= {".hydra", "train.log"}:
        logging.shutdown()
        shutil.rmtree(run_dir)


def _exit_with(message: str, code: int) -> None:
    print(f"stowage: {message}", file=sys.stderr)
    sys.exit(code)
