"""One run, from settings to a directory of results. Only wiring."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from data.accounting import Accounting
from data.shared_stream import SharedStream
from data.sources.base import PreparedData
from sft.begin import begin
from sft.build import Trainee, build_trainee
from sft.checkpoint import CheckpointWriter, load_training
from sft.checks import Derived
from sft.config import RunConfig
from sft.console import RunConsole
from sft.errors import TrainingError
from sft.exchange import exchange_of_all, lost_ranks_end_the_run
from sft.feed import Feed
from sft.files import leave
from sft.flops import TrainingFlops
from sft.header import header
from sft.launch import ALONE, Place
from sft.loggers.base import Metrics
from sft.loggers.run_log import RunLog
from sft.loop import Loop
from sft.metrics import Histograms, Speed
from sft.parallel import parallel_layout, process_group
from sft.progress import Progress
from sft.step import StepRunner
from sft.stopping import Stop
from sft.summary import samples_json, summary_json, summary_rows
from sft.validate import validate
from sft.yardstick import Yardstick, device_peak


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended.

    Attributes:
        run_dir: where everything is.
        final_val_loss: None without validation data.
        summary: the content of ``summary.json``.
    """

    run_dir: Path
    final_val_loss: float | None
    summary: dict[str, Any]


def run(config: RunConfig, derived: Derived, place: Place = ALONE) -> RunResult:
    """Train as configured and leave the results in ``config.run_dir``.

    Every process of a run calls this. The directory is the first one's, and only that one writes.

    Raises:
        ConfigError: the machine, or the place of the data, lacks what the settings ask for.
        DataError: what the data holds cannot be used.
        TrainingError: training cannot go on.
    """
    started, started_at = time.perf_counter(), datetime.datetime.now().astimezone()
    with ExitStack() as stack:
        stack.enter_context(lost_ranks_end_the_run(place))
        device = stack.enter_context(process_group(place, config.train.threads))
        exchange = exchange_of_all(place)
        config = replace(config, run_dir=exchange.gather(config.run_dir)[0])
        console = RunConsole(log_every=config.train.log_every, silent=not place.leads)
        say = partial(_say, console)
        begun = begin(config, derived, place, exchange, say, started_at)
        data, feed, start = begun.data, begun.feed, begun.start
        log = stack.enter_context(
            RunLog(
                config.run_dir,
                config.logger,
                say,
                writes=place.leads,
                resumed_at=start.steps if start.in_place or start.checkpoint else None,
            )
        )
        plan = feed.plan(data.train)
        # Its workers are forked before the model takes memory.
        stream = stack.enter_context(feed.training_stream(data.train, start.position))
        log.open_mirrors()
        stack.enter_context(parallel_layout(config.parallel, config.seed))
        trainee = build_trainee(
            config,
            tokenizer_vocab_size=derived.tokenizer.vocab_size,
            kernels=begun.kernels,
            steps=plan.steps,
            initial_weights=start.checkpoint is None,
        )
        progress = Progress(
            speed=Speed(skip_steps=config.train.speed_skip_steps),
            histograms=Histograms(config.packing.capacity),
        )
        if start.checkpoint is not None:
            load_training(start.checkpoint, trainee.chunks, trainee.optimizer, trainee.scheduler)
            progress.restore(start.state["progress"])
        yardstick = Yardstick(
            flops=TrainingFlops.of(config.model, derived.tokenizer.vocab_size, config.lora),
            peak_flops_per_s=device_peak(device, trainee.chunks[0], place.world_size),
            started=started,
        )
        stop = Stop(config.train.stop_after_seconds, started)
        if config.train.save_every is not None:
            stack.enter_context(stop.listening())
        loop = _build_loop(
            config, derived, feed, data, trainee, plan.steps, device, yardstick, log, console,
            stop, begun.identity,
        )  # fmt: skip
        console.header(
            header(config, derived, data, trainee, plan, begun.kernels_named, place, start)
        )
        console.start(plan.steps, done=progress.steps)
        stack.callback(console.stop)
        write_samples = partial(_write_samples, config, data, progress, stream, place)
        try:
            loop.train(stream, feed.steps(stream, plan), progress)
        except BaseException:
            # Also of a run that fails: what it has read and trained on is known. What the first
            # error was matters more than a second one.
            with suppress(TrainingError):
                write_samples()
            raise
        write_samples()
        console.stop()
        if feed.loader_packs:
            progress.rows, progress.fewest_rows = stream.rows, stream.fewest_rows
        summary = summary_json(progress, device, yardstick, exchange)
        if place.leads:
            leave(config.run_dir / "summary.json", summary)
        log.done(summary)
    console.summary(summary_rows(summary, stream.accounting, config.run_dir))
    final = progress.validations[-1][1].loss if progress.validations else None
    return RunResult(run_dir=config.run_dir, final_val_loss=final, summary=summary)


def _say(console: RunConsole, line: str) -> None:
    console.say(escape(line))


def _build_loop(
    config: RunConfig,
    derived: Derived,
    feed: Feed,
    data: PreparedData,
    trainee: Trainee,
    steps: int,
    device: torch.device,
    yardstick: Yardstick,
    log: Callable[[Metrics], None],
    console: RunConsole,
    stop: Stop,
    about: Mapping[str, Any],
) -> Loop:
    runner = StepRunner(
        chunks=trainee.chunks,
        device=device,
        average=config.loss.average,
        real_boundaries=config.packing.real_boundaries,
    )
    return Loop(
        trainee=trainee,
        runner=runner,
        feed=feed,
        steps=steps,
        eval_every=config.train.eval_every,
        save_every=config.train.save_every,
        checkpoints=CheckpointWriter(
            config=config,
            tokenizer=derived.tokenizer,
            chunks=trainee.chunks,
            optimizer=trainee.optimizer,
            scheduler=trainee.scheduler,
            exchange=feed.exchange,
        ),
        validate=partial(validate, runner, feed, data.val) if len(data.val) else None,
        stop=stop,
        identity=about,
        yardstick=yardstick,
        log=log,
        console=console,
    )


def _write_samples(
    config: RunConfig, data: PreparedData, progress: Progress, stream: SharedStream, place: Place
) -> None:
    if not place.leads:
        return
    train = stream.accounting
    val = progress.validations[0][1].accounting if progress.validations else Accounting()
    content = samples_json(data.notes, train, progress.speed.total.samples, val)
    leave(config.run_dir / "samples.json", content)
