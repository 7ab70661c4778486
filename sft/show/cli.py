"""``python -m data.show``: train.py's own words, and which samples are to be shown."""

from __future__ import annotations

import logging
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir
from rich.console import Console

from data.errors import DataError
from sft.checks import Derived, check
from sft.cli import BAD_CONFIG, FAILED, INTERRUPTED, REFUSALS, canonical_override
from sft.config import RunConfig, resolve
from sft.encoder import build_encoder
from sft.errors import ConfigError
from sft.explain import CONF_DIR, explain
from sft.order import training_order
from sft.show.page import Page, share
from sft.show.samples import Gathered, gather

HELP = """\
Show what training would be given: conversations as tokens, those to be predicted coloured.

  python -m data.show data=jsonl data.path=chats.jsonl           the first that it would read
  python -m data.show data=jsonl data.path=chats.jsonl n=20 data.loss_on=last
  python -m data.show data=jsonl data.path=chats.jsonl --failed  what it would not use, and why

Any key of train.py can be set (train.py --help lists them). And:

  n=5               how many
  --failed          the first that are dropped, with the reason
  --plain           no colours: targets stand between \u27e6 and \u27e7
  --config-dir DIR  options of your own, as for train.py
"""

_FLAGS = ("--failed", "--plain")
_OPTIONS = (*_FLAGS, "--config-dir", "--help")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command itself can be asked for.

    Attributes:
        n: how many conversations.
        failed: those that are dropped.
        plain: no colours.
        config_dir: options of the user's own.
    """

    n: int = 5
    failed: bool = False
    plain: bool = False
    config_dir: Path | None = None


def main(words: list[str]) -> int:
    """Run the command; returns its exit code, the same ones as train.py's."""
    if {"-h", "--help"} & set(words):
        print(HELP, end="")
        return 0
    words = [canonical_override(word) for word in words]
    try:
        options, overrides = _split(words)
        config = resolve_run(overrides, options.config_dir)
        return _show(config, check(config), options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except REFUSALS as error:
        return _say(
            explain(error, words, several="one run is shown, so give one value"), BAD_CONFIG
        )
    except DataError as error:
        return _say(str(error), FAILED)


def resolve_run(overrides: list[str], config_dir: Path | None = None) -> RunConfig:
    """The settings of the run that these words would start.

    Raises:
        ConfigError: a setting is wrong.
        HydraException: a word cannot be read, or names what is not there.
    """
    search = [] if config_dir is None else [f"hydra.searchpath=[file://{config_dir}]"]
    # A storage library beside Energon tells at length that its options are not set up.
    logging.getLogger("multistorageclient.contrib.hydra").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), initialize_config_dir(CONF_DIR, version_base="1.3"):
        warnings.filterwarnings("ignore", "provider=msc-universal", UserWarning)
        # Nothing is run: the directory would be named after a job that there is not.
        return resolve(compose("config", [*search, "run_dir=show", *overrides]))


def _show(config: RunConfig, derived: Derived, options: Options) -> int:
    try:
        data = config.data.prepare()
    except DataError as error:
        raise ConfigError(str(error)) from error
    encode, tokenizer = build_encoder(config, derived), derived.tokenizer
    order = training_order(config, len(data.train), 1, data.train.shares)
    found = gather(data.train, encode, order, options.n, failed=options.failed)
    if not options.failed and not found.samples:
        raise DataError(
            f"none of the conversations can be used: {found.accounting.describe()}; --failed shows "
            "what is wrong with each"
        )
    console = Console(color_system=None) if options.plain else Console()
    page = Page(console, plain=options.plain)
    if options.failed:
        for failure in found.failures:
            page.failure(failure)
    else:
        page.legend(
            f"{data.name}, data.tokenizer={tokenizer.name}, data.loss_on="
            f"{config.data.loss_on.value}, packing.capacity={config.packing.capacity}"
        )
        for sample in found.samples:
            page.sample(sample, tokenizer)
    page.say(_summary(found))
    return 0


def _summary(found: Gathered) -> str:
    seen = found.accounting
    return (
        f"{seen.describe()}; {seen.real_tokens:,} tokens, "
        f"{share(seen.loss_tokens, seen.real_tokens)}"
    )


def _split(words: list[str]) -> tuple[Options, list[str]]:
    """The command's own options, and train.py's words."""
    overrides: list[str] = []
    n, config_dir = "5", None
    rest = iter(words)
    for word in rest:
        key, is_assignment, value = word.partition("=")
        if key == "--config-dir":
            config_dir = value if is_assignment else next(rest, "")
            if not config_dir:
                raise ConfigError(f"{key}: must name a directory")
        elif word.startswith("-") and word not in _FLAGS:
            raise ConfigError(f"{word}: there is no such option; there are {', '.join(_OPTIONS)}")
        elif key == "n":
            n = value
        elif word not in _FLAGS:
            overrides.append(word)
    if not (n.isascii() and n.isdigit() and int(n) >= 1):
        raise ConfigError(f"n={n}: must be a whole number, 1 or more")
    return (
        Options(
            n=int(n),
            failed="--failed" in words,
            plain="--plain" in words,
            config_dir=None if config_dir is None else Path(config_dir).resolve(),
        ),
        overrides,
    )


def _say(message: str, code: int) -> int:
    print(f"stowage: {message}", file=sys.stderr)
    return code
