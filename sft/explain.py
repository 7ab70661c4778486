"""What a mistake on the command line is told as: one message instead of Hydra's stack trace."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError  # type: ignore[import-untyped]

from data.packers import ALIASES
from sft.wording import closest, first_line

CONF_DIR = str(Path(__file__).resolve().parent.parent / "conf")

_SWEEP = "several values are a sweep, one run for each; add -m to ask for that"


def explain(error: Exception, words: list[str], several: str = _SWEEP) -> str:
    """One message for a person: the key, the value, what is allowed, what to change.

    Args:
        error: of :data:`sft.cli.REFUSALS`, or what Hydra raises before a job starts.
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

    choices = [w for w in words if "," not in w and is_group(w.partition("=")[0])]
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
    guess = closest(key, [*keys, *filter(is_group, os.listdir(CONF_DIR))])
    hint = f" Did you mean {guess}?" if guess else ""
    where = f"in {section}" if section else "at the top level"
    return f"{_word(key, words)}: there is no such key.{hint} Keys {where}: {inside}"


def _word(key: str, words: Iterable[str]) -> str:
    """What was typed for a key."""
    return next((w for w in words if w.lstrip("+~").split("=")[0] == key), key)


def is_group(name: str) -> bool:
    """Whether a key stands for a choice of options, as ``packer`` does."""
    return bool(re.fullmatch(r"\w+(/\w+)*", name)) and (Path(CONF_DIR) / name).is_dir()


def _chooses_no_option(word: str) -> bool:
    """Whether a group is given what is no name: null, a number."""
    return is_group(word.partition("=")[0]) and not isinstance(
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
