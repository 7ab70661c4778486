"""``python -m sft.preview``: train.py's own words, and what is to be previewed of them."""

from __future__ import annotations

import copy
import itertools
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from data.errors import DataError
from data.packing.settings import PackingMode
from sft.checks import check
from sft.cli import BAD_CONFIG, FAILED, INTERRUPTED, REFUSALS, canonical_override
from sft.config import resolve
from sft.errors import ConfigError
from sft.explain import CONF_DIR, explain
from sft.preview.choice import Choice
from sft.preview.preview import preview
from sft.wording import unknown_key

HELP = """\
Say what training would meet, without training: rows, fill, steps, balance, what to look out for.

  python -m sft.preview                                    the settings as they are
  python -m sft.preview packing=none,loader packer=ffd,mffd      every combination of the two
  python -m sft.preview 'packer=glob(*)' data=jsonl data.path=chats.jsonl
  python -m sft.preview lengths=lengths.npy model=llama3_1_8b packing.capacity=8192

Any key of train.py can be set, and any can have several values (train.py --help lists them). And:

  lengths=FILE      take the token counts of the conversations from a .npy file of integers or a
                    text file with one on each line, and read no data
  ranks=8           data-parallel ranks to measure the balance for
  seconds=1.5       to pack in, all choices together; where that is too short, a part of the windows
                    is packed, spread evenly, and the numbers are estimates; null packs all
  preview_dir=DIR   where preview.json and preview.png go (--output DIR is the same);
                    runs/preview/<date>/<time> if it is not given
  --config-dir DIR  options of your own, as for train.py
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the preview itself can be asked for; the fields are its keys.

    Attributes:
        lengths: a file of token counts; None: the conversations of ``data``.
        ranks: data-parallel ranks.
        seconds: to pack in, all choices together; None: as long as it takes.
        preview_dir: where the results go.
    """

    lengths: Path | None = None
    ranks: int = 8
    seconds: float | None = 1.5
    preview_dir: Path


def main(words: list[str]) -> int:
    """Run the command; returns its exit code, the same ones as train.py's."""
    if {"-h", "--help"} & set(words):
        print(HELP, end="")
        return 0
    words = [canonical_override(word) for word in words]
    try:
        options, config_dir, overrides = _split(words)
        choices = choices_of(overrides, config_dir)
        preview(
            choices,
            lengths_file=options.lengths,
            ranks=options.ranks,
            seconds=options.seconds,
            output=options.preview_dir,
            command=["python", "-m", "sft.preview", *words],
        )
    except KeyboardInterrupt:
        return INTERRUPTED
    except REFUSALS as error:
        return _say(explain(error, words), BAD_CONFIG)
    except DataError as error:
        return _say(str(error), FAILED)
    return 0


def choices_of(overrides: Iterable[str], config_dir: Path | None = None) -> list[Choice]:
    """Every combination of the values that the overrides list, composed and checked as a run's.

    Raises:
        ConfigError: a setting is wrong.
        HydraException: an override cannot be read, or names what is not there.
    """
    choices: list[Choice] = []
    with _hydra():
        composer = _Composer()
        search = [] if config_dir is None else [f"hydra.searchpath=[file://{config_dir}]"]
        for several, words in _combinations(list(overrides)):
            # Nothing is run: the directory would be named after a job that there is not.
            config = resolve(composer.tree([*search, "run_dir=preview", *words]))
            packing, packer = config.packing.mode.value, type(config.packer).__module__
            nobody = config.packing.mode is PackingMode.NONE
            choice = Choice(
                config=config,
                derived=check(config),
                packing=packing,
                packer=None if nobody else packer.rpartition(".")[2],
                overrides=tuple(w for w in several if not (nobody and w.startswith("packer"))),
            )
            if not any(_same(choice, other) for other in choices):
                choices.append(choice)
    return choices


@dataclass
class _Composer:
    """Composes trees. A packer that was composed before is put into the tree that was.

    Hydra takes a tenth of a second for each tree, and every packer in every mode is many. The
    packer's options stand behind the packing's in the defaults list, so none of these change them.
    """

    _trees: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)
    _packers: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)

    def tree(self, words: list[str]) -> DictConfig:
        """What ``compose`` makes of the words."""
        but_packer = tuple(w for w in words if not w.startswith("packer="))
        but_packing = tuple(w for w in words if not w.startswith("packing="))
        if but_packer in self._trees and but_packing in self._packers:
            tree = copy.deepcopy(self._trees[but_packer])
            tree.packer = self._packers[but_packing]
            return tree
        tree = compose("config", words)
        self._packers[but_packing] = tree.packer
        self._trees[but_packer] = tree
        return tree


def _same(one: Choice, other: Choice) -> bool:
    """Whether two choices differ in nothing that matters: in the packer of nobody, say."""
    if one.packer is None and other.packer is None:
        return replace(one.config, packer=other.config.packer) == other.config
    return one.config == other.config


@contextmanager
def _hydra() -> Iterator[None]:
    # A storage library that is installed beside Energon adds a place of its own to look for
    # options, and tells at length, whenever there is another place, that it is not set up.
    logging.getLogger("multistorageclient.contrib.hydra").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), initialize_config_dir(CONF_DIR, version_base="1.3"):
        warnings.filterwarnings("ignore", "provider=msc-universal", UserWarning)
        yield


def _combinations(overrides: list[str]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Of each combination the words with several values, and all words."""
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    parser = OverridesParser.create(config_loader=hydra.config_loader)
    listed: list[list[tuple[str, bool]]] = []
    for word, override in zip(overrides, parser.parse_overrides(overrides), strict=True):
        if override.is_sweep_override():
            if not override.is_discrete_sweep():
                raise ConfigError(f"{word}: name the values, as key=a,b")
            key = override.get_key_element()
            listed.append([(f"{key}={v}", True) for v in override.sweep_string_iterator()])
        else:
            if isinstance(override.value(), list):
                _refuse_list(word, override.key_or_group)
            listed.append([(word, False)])
    for combination in itertools.product(*listed):
        yield tuple(w for w, several in combination if several), [w for w, _ in combination]


def _refuse_list(word: str, key: str) -> None:
    """Of a list Hydra would take the last option, and say nothing."""
    if (Path(CONF_DIR) / key).is_dir() and key not in ("logger", "experiment"):
        several = word.partition("=")[2].strip("[]'\"").replace(" ", "")
        raise ConfigError(f"{word}: takes one option; to preview several: {key}={several}")


def _split(words: list[str]) -> tuple[Options, Path | None, list[str]]:
    """The preview's own options, the directory of one's own settings, and train.py's words."""
    known = [f.name for f in fields(Options)]
    given: dict[str, str] = {}
    overrides: list[str] = []
    rest = iter(words)
    for word in rest:
        key, is_assignment, value = word.partition("=")
        if word in ("-m", "--multirun"):
            continue  # several values are what a preview is for
        if word.startswith("--"):
            name = {"--output": "preview_dir", "--config-dir": "config_dir"}.get(key)
            if name is None:
                raise ConfigError(unknown_key(key, value, ["--output", "--config-dir", "--help"]))
            value = value if is_assignment else next(rest, "")
            if not value:
                raise ConfigError(f"{key}: must name a directory")
            given[name] = value
        elif key in known:
            given[key] = value
        else:
            overrides.append(word)
    config_dir = given.pop("config_dir", None)
    options = Options(
        lengths=Path(given["lengths"]) if given.get("lengths", "null") != "null" else None,
        ranks=_number("ranks", given.get("ranks", "8"), int),
        seconds=_seconds(given.get("seconds", "1.5")),
        preview_dir=Path(given.get("preview_dir") or f"runs/preview/{_now()}"),
    )
    return options, None if config_dir is None else Path(config_dir).resolve(), overrides


def _seconds(text: str) -> float | None:
    return None if text == "null" else _number("seconds", text, float)


def _number[T: (int, float)](key: str, text: str, kind: type[T]) -> T:
    try:
        value = kind(text)
    except ValueError:
        value = kind(0)
    if not value >= 1 and not (kind is float and value > 0):
        what = "a whole number, 1 or more" if kind is int else "a number above 0, or null"
        raise ConfigError(f"{key}={text}: must be {what}")
    return value


def _now() -> str:
    return datetime.now().strftime("%Y-%m-%d/%H-%M-%S.%f")


def _say(message: str, code: int) -> int:
    print(f"stowage: {message}", file=sys.stderr)
    return code
