"""One run, from settings to a directory of results. Only wiring."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape

from data.accounting import Accounting
from data.errors import DataError
from data.packing.settings import PackingMode
from data.sources.base import PreparedData
from models.lora_settings import LoRASettings
from sft.build import Trainee, build_trainee, check_initial_weights, kernel_path
from sft.checkpoint import DESCRIPTION_DIR, save_weights
from sft.checks import Derived
from sft.config import RunConfig
from sft.console import RunConsole
from sft.errors import ConfigError, TrainingError
from sft.feed import Feed, StepPlan
from sft.files import write_json
from sft.flops import TrainingFlops
from sft.loggers.base import Metrics
from sft.loggers.run_log import RunLog
from sft.loop import Loop, Progress
from sft.metrics import Histograms, Speed, Yardstick, device_peak
from sft.parallel import parallel_session
from sft.publish import write_description
from sft.record import claim_run_dir, describe_run
from sft.step import StepRunner
from sft.summary import samples_json, summary_json, summary_rows
from sft.validate import validate


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


def run(config: RunConfig, derived: Derived) -> RunResult:
    """Train as configured and leave the results in ``config.run_dir``.

    Raises:
        ConfigError: the machine, or the place of the data, lacks what the settings ask for.
        DataError: what the data holds cannot be used.
        TrainingError: training cannot go on.
    """
    started, started_at = time.perf_counter(), datetime.datetime.now().astimezone()
    kernels, why = kernel_path(config)
    check_initial_weights(config)
    data = _prepare(config)
    claim_run_dir(config.run_dir)
    record = describe_run(config, f"{kernels.value} ({why})", data, started_at)
    write_json(config.run_dir / "run.json", record)
    if config.train.save_every is not None:
        _describe_model(config, derived)
    feed = Feed.of(config, derived)
    console = RunConsole(log_every=config.train.log_every)
    with ExitStack() as stack:
        log = stack.enter_context(
            RunLog(config.run_dir, config.logger, lambda line: console.say(escape(line)))
        )
        plan = feed.plan(data.train)
        # Its workers are forked before the model takes memory.
        stream = stack.enter_context(feed.training_stream(data.train))
        log.open_mirrors()
        device = stack.enter_context(parallel_session(config.seed, config.train.threads))
        trainee = build_trainee(
            config,
            tokenizer_vocab_size=derived.tokenizer.vocab_size,
            kernels=kernels,
            steps=plan.steps,
        )
        yardstick = Yardstick(
            flops=TrainingFlops.of(config.model, derived.tokenizer.vocab_size, config.lora),
            peak_flops_per_s=device_peak(device, trainee.model),
            started=started,
        )
        loop = _build_loop(
            config, derived, feed, data, trainee, plan.steps, device, yardstick, log, console
        )
        console.header(_header(config, derived, data, trainee, plan, f"{kernels.value} ({why})"))
        progress = Progress(
            speed=Speed(skip_steps=config.train.speed_skip_steps),
            histograms=Histograms(config.packing.capacity),
        )
        console.start(plan.steps)
        stack.callback(console.stop)
        try:
            loop.train(iter(feed.step_batches(stream, plan)), progress)
        except BaseException:
            # Also of a run that fails: what it has read and trained on is known. What the first
            # error was matters more than a second one.
            with suppress(TrainingError):
                _write_samples(config, data, progress, stream.accounting)
            raise
        _write_samples(config, data, progress, stream.accounting)
        console.stop()
        if feed.loader_packs:
            progress.rows, progress.fewest_rows = stream.rows, stream.fewest_rows
        summary = summary_json(progress, device, yardstick)
        _leave(config.run_dir / "summary.json", summary)
        log.done(summary)
    console.summary(summary_rows(summary, stream.accounting, config.run_dir))
    final = progress.validations[-1][1].loss if progress.validations else None
    return RunResult(run_dir=config.run_dir, final_val_loss=final, summary=summary)


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
) -> Loop:
    runner = StepRunner(
        model=trainee.model,
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
        save=partial(save_weights, config, derived.tokenizer, trainee.model),
        validate=partial(validate, runner, feed, data.val) if len(data.val) else None,
        yardstick=yardstick,
        log=log,
        console=console,
    )


def _write_samples(
    config: RunConfig, data: PreparedData, progress: Progress, train: Accounting
) -> None:
    val = progress.validations[0][1].accounting if progress.validations else Accounting()
    content = samples_json(data.notes, train, progress.speed.total.samples, val)
    _leave(config.run_dir / "samples.json", content)


def _leave(path: Path, content: Mapping[str, Any]) -> None:
    """Write a result; that it cannot be ends the run with a message, as of ``metrics.jsonl``."""
    try:
        write_json(path, content)
    except OSError as error:
        raise TrainingError(f"{path}: cannot be written ({error.strerror or error})") from error


def _header(
    config: RunConfig,
    derived: Derived,
    data: PreparedData,
    trainee: Trainee,
    plan: StepPlan,
    kernels: str,
) -> dict[str, str]:
    packing, train = config.packing, config.train
    if packing.mode is PackingMode.NONE:
        who = f"none: rectangles of {derived.micro_batch_size} conversations"
    else:
        who = f"{packing.mode.value}, {type(config.packer).__name__}"
        if packing.mode is PackingMode.LOADER:
            who += f", over up to {packing.loader_buffer_size} samples at a time"
    if plan.real_tokens is not None:
        batch = f"{float(plan.real_tokens):,.0f} real tokens"
    elif train.global_batch_tokens is not None:
        batch = f"{train.global_batch_tokens:,} slots"
    else:
        batch = f"{train.global_batch_samples:,} conversations"
    return {
        "model": f"{trainee.parameters + trainee.frozen_parameters:,} parameters, "
        f"{config.model.num_layers} layers of {config.model.hidden_size}",
        **({"weights": config.model.init_from} if config.model.init_from else {}),
        **_lora_facts(config.lora, trainee),
        "kernels": kernels,
        "data": f"{data.name}: {len(data.train):,} conversations to train on, "
        f"{len(data.val):,} to validate on",
        "packing": who,
        "capacity": f"{packing.capacity:,} tokens, pad multiple {derived.pad_multiple}",
        "batch": f"{batch} per step, {plan.steps:,} steps",
        "run": str(config.run_dir),
    }


def _lora_facts(lora: LoRASettings, trainee: Trainee) -> dict[str, str]:
    if lora.rank is None:
        return {}
    share = trainee.parameters / (trainee.parameters + trainee.frozen_parameters)
    return {
        "lora": f"{trainee.parameters:,} parameters trained, {share:.2%} of all: rank {lora.rank}, "
        f"alpha {lora.resolved_alpha:g}, on {', '.join(lora.matrices)}"
    }
