"""What all processes of a run agree on before anything heavy is made."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from data.errors import DataError
from data.exchange import Exchange
from data.sources.base import PreparedData
from models.gpt import KernelPath
from sft.build import check_initial_weights, kernel_path
from sft.checkpoint import DESCRIPTION_DIR
from sft.checks import Derived
from sft.config import RunConfig
from sft.errors import ConfigError, TrainingError
from sft.exchange import by_rank_0, together
from sft.feed import Feed
from sft.files import leave
from sft.identity import identity, refuse_changes
from sft.launch import Place
from sft.publish import write_description
from sft.record import claim_run_dir, describe_run
from sft.resume import Start, find_start, keep_record


@dataclass(frozen=True, kw_only=True)
class Begun:
    """What all processes agree on before anything heavy is made.

    Attributes:
        data: the conversations.
        feed: how they are read, packed and grouped.
        start: where the run begins.
        identity: what it may not go on without.
        kernels: whose layers.
        kernels_named: whose, and why.
    """

    data: PreparedData
    feed: Feed
    start: Start
    identity: dict[str, Any]
    kernels: KernelPath
    kernels_named: str


def begin(
    config: RunConfig,
    derived: Derived,
    place: Place,
    exchange: Exchange,
    say: Callable[[str], None],
    started_at: datetime.datetime,
) -> Begun:
    """Refuse on all processes what one has to refuse; then the directory is the run's.

    Args:
        config: the run's, with the first process's directory.
        derived: what follows from it.
        place: of this process.
        exchange: of all.
        say: shows a person a line.
        started_at: when the run started.

    Raises:
        ConfigError: the machine, the data or a checkpoint lacks what the settings ask for.
        TrainingError: the directory cannot be written.
    """
    kernels, why = together(exchange, partial(kernel_path, config))
    named = f"{kernels.value} ({why})"
    start = by_rank_0(exchange, partial(find_start, config, say))
    if start.checkpoint is None:
        together(exchange, partial(check_initial_weights, config))
    data = together(exchange, partial(_prepare, config))
    feed = Feed.of(config, derived, exchange)
    about = together(exchange, partial(_same_run, config, derived, data, feed, start, say))
    record = describe_run(config, named, data, started_at, place)
    by_rank_0(exchange, partial(_open_run_dir, config, derived, record, start))
    return Begun(
        data=data, feed=feed, start=start, identity=about, kernels=kernels, kernels_named=named
    )


def _same_run(
    config: RunConfig,
    derived: Derived,
    data: PreparedData,
    feed: Feed,
    start: Start,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """What the run is; refused where the checkpoint it begins with is of another."""
    about = identity(config, derived, data.train, feed.encode)
    if start.checkpoint is not None:
        was = start.state["identity"]
        allow = config.resume.allow
        for difference in refuse_changes(was, about, allow=allow, checkpoint=str(start.checkpoint)):
            say(f"resume.allow: {difference}")
    return about


def _open_run_dir(
    config: RunConfig, derived: Derived, record: dict[str, Any], start: Start
) -> None:
    """Take the directory and say in it what is run; only the first process does."""
    path = config.run_dir / "run.json"
    if start.in_place:
        keep_record(config.run_dir, config.run_dir, start.state)
        before = json.loads(path.read_text(encoding="utf-8"))
        went_on = {**record, "after_step": start.steps}
        leave(path, {**before, "resumed": [*before.get("resumed", []), went_on]})
    else:
        claim_run_dir(config.run_dir)
        if start.checkpoint is not None:
            record = {**record, "began_with": str(start.checkpoint)}
            keep_record(start.checkpoint.parent.parent, config.run_dir, start.state)
        leave(path, record)
    if config.train.save_every is not None:
        _describe_model(config, derived)


def _prepare(config: RunConfig) -> PreparedData:
    """The conversations; what is wrong before one is read is a setting's fault."""
    try:
        return config.data.prepare()
    except DataError as error:
        raise ConfigError(str(error)) from error


def _describe_model(config: RunConfig, derived: Derived) -> None:
    """Everything of an export but the weights, while what it is made of is there."""
    try:
        write_description(config.run_dir / DESCRIPTION_DIR, config.model, derived.tokenizer)
    except ValueError as error:
        raise ConfigError(
            f"model.{error}; set train.save_every=null to train it without leaving a checkpoint"
        ) from error
    except OSError as error:
        raise TrainingError(
            f"{config.run_dir}: cannot be written ({error.strerror or error})"
        ) from error
