"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from data.packing.microbatches import to_microbatches
from data.shared_stream import SharedStream, StreamPosition
from sft.build import Trainee
from sft.checkpoint import CheckpointWriter
from sft.collectives import agreed_reason
from sft.console import RunConsole
from sft.errors import RunStopped, TrainingError, said_by_first
from sft.feed import Feed, Step
from sft.loggers.base import Metrics, Scalar
from sft.metrics import Counts, PhaseTimer
from sft.progress import Progress
from sft.step import StepRunner, refuse_non_finite
from sft.stopping import Stop
from sft.validate import Validation
from sft.yardstick import Yardstick


@dataclass(frozen=True, kw_only=True)
class Loop:
    """Everything the loop needs; what it returns is a :class:`Progress`.

    Attributes:
        trainee: model, optimizer, schedule.
        runner: forward and backward.
        feed: from batches to microbatches.
        steps: optimizer steps to do.
        eval_every: steps between validations; 0: start and end only.
        save_every: steps between checkpoints; 0: end only; None: never.
        validate: None without validation data.
        checkpoints: leaves them.
        stop: whether to end before the last step.
        identity: what the run may not go on without, see ``sft.identity``.
        yardstick: what speeds are held against, and when the run started.
        log: takes each record.
        console: shows each step.
    """

    trainee: Trainee
    runner: StepRunner
    feed: Feed
    steps: int
    eval_every: int
    save_every: int | None
    validate: Callable[[], Validation] | None
    checkpoints: CheckpointWriter
    stop: Stop
    identity: Mapping[str, Any]
    yardstick: Yardstick
    log: Callable[[Metrics], None]
    console: RunConsole

    def train(self, stream: SharedStream, steps: Iterator[Step], progress: Progress) -> Progress:
        """Train until the steps are done.

        Args:
            stream: of the training conversations.
            steps: that it is cut into.
            progress: how far the run has come.

        Raises:
            TrainingError: a loss or a gradient that is not finite.
            RunStopped: it was asked to end, and has left a checkpoint.
        """
        self._validate_if_missing(progress)
        start, before = time.perf_counter(), progress.steps
        while progress.steps < self.steps:
            begun = time.perf_counter()
            metrics, end = self._step(stream, steps, progress)
            self.log(metrics)
            done = progress.steps
            # Validation between the steps takes its share of the wall time too.
            eta = (time.perf_counter() - start) / (done - before) * (self.steps - done)
            self.console.step(metrics, step=done, steps=self.steps, eta_seconds=eta)
            # Before validation, which may find that the run has diverged: then there is more to
            # look into.
            due = self._due(self.save_every, done)
            if due:
                self._save(progress, end)
            if self._due(self.eval_every, done):
                self._validate(progress)
            self.stop.took("step", time.perf_counter() - begun)
            if done < self.steps and (reason := agreed_reason(self.stop.reason)):
                self._end_early(progress, end, reason, saved=due)
        return progress

    def _validate_if_missing(self, progress: Progress) -> None:
        """At the start; after a resume, where the checkpoint came before the validation."""
        done = progress.steps
        if done == 0 or self._due(self.eval_every, done):
            if not any(step == done for step, _ in progress.validations):
                self._validate(progress)

    def _save(self, progress: Progress, end: StreamPosition) -> None:
        begun = time.perf_counter()
        assert end.steps_done == progress.steps
        state = {
            "identity": self.identity,
            "progress": progress.to_state(),
            "position": end.to_json(),
        }
        self.checkpoints.save(progress.steps, state, progress.best_steps)
        self.stop.took("save", time.perf_counter() - begun)

    def _end_early(
        self, progress: Progress, end: StreamPosition, reason: str, *, saved: bool
    ) -> None:
        if not saved:
            self._save(progress, end)
        error = RunStopped(
            f"stopped by {reason} after step {progress.steps} of {self.steps}, with a checkpoint. "
            f"To go on: the same command with resume=auto and "
            f"run_dir={self.checkpoints.config.run_dir}"
        )
        raise said_by_first(error, self.feed.exchange.rank)

    def _due(self, every: int | None, done: int) -> bool:
        """Whether it is time for what happens every so many steps, and at the end."""
        if every is None:
            return False
        return done == self.steps or (every > 0 and done % every == 0)

    def _step(
        self, stream: SharedStream, steps: Iterator[Step], progress: Progress
    ) -> tuple[dict[str, Scalar], StreamPosition]:
        step = progress.steps + 1
        timer = PhaseTimer(self.runner.device)
        with timer.phase("data_wait"):
            given = next(steps, None)
        if given is None:
            raise TrainingError(
                f"step {step} of {self.steps}: the data ended early. It changed while it was read"
            )
        with timer.phase("packing"):
            dealt = self.feed.deal(given)
        with timer.phase("data_wait"):
            batch = self.feed.batch(stream, given, dealt)
        with timer.phase("packing"):
            microbatches = to_microbatches(batch, self.feed.layout)
        portions = dealt.portions  # of all replicas
        counts = Counts.of(portions)
        if dealt.fewest_rows:
            progress.rows += counts.microbatches
            progress.fewest_rows += dealt.fewest_rows
        with timer.phase("forward_backward"):
            for chunk in self.trainee.chunks:
                chunk.zero_grad_buffer()
            self.trainee.optimizer.zero_grad()
            loss = self.runner.forward_backward(microbatches)
        refuse_non_finite(loss, microbatches, step)
        lr = self.trainee.optimizer.param_groups[0]["lr"]
        with timer.phase("optimizer"):
            _, grad_norm, _ = self.trainee.optimizer.step()
            self.trainee.scheduler.step(increment=1)
        if grad_norm is not None and not math.isfinite(grad_norm):
            mine = [i for m in microbatches for i in m.source_ids]
            ids = list(dict.fromkeys(i for part in self.feed.exchange.gather(mine) for i in part))
            error = TrainingError(
                f"step {step}: the gradient norm is {grad_norm}; the step trained on "
                f"{', '.join(ids[:8])}{' ...' if len(ids) > 8 else ''}. Lower optimizer.lr"
            )
            raise said_by_first(error, self.feed.exchange.rank)
        progress.steps = step
        progress.last_loss = loss.value
        progress.speed.add(counts, timer)
        imbalance = progress.histograms.add(portions)
        metrics: dict[str, Scalar] = {
            "event": "train",
            "step": step,
            "loss": loss.value,
            "lr": lr,
            "grad_norm": grad_norm,
            "total_real_tokens": progress.speed.total.real_tokens,
            "attention_imbalance": imbalance,
            "rank_token_imbalance": dealt.token_imbalance,
            "rank_cost_imbalance": dealt.cost_imbalance,
            **self._measured(counts, timer),
        }
        return metrics, given.end

    def _measured(self, counts: Counts, timer: PhaseTimer) -> dict[str, Scalar]:
        """What a step consisted of, and how fast it was."""
        return {
            "slot_tokens": counts.slot_tokens,
            "real_tokens": counts.real_tokens,
            "loss_tokens": counts.loss_tokens,
            "samples": counts.samples,
            "microbatches": counts.microbatches,
            "fill": counts.fill,
            "squared_length_sum": counts.squared_length_sum,
            "model_flops": counts.model_flops(self.yardstick.flops),
            **counts.rates(timer.total),
            **self.yardstick.speed(counts, timer.total),
            **{f"{name}_seconds": seconds for name, seconds in timer.seconds.items()},
            "step_seconds": timer.total,
            "wall_seconds": self.yardstick.wall_seconds,
        }

    def _validate(self, progress: Progress) -> None:
        if self.validate is None:
            return
        result = self.validate()
        if not math.isfinite(result.loss):
            raise TrainingError(f"step {progress.steps}: the validation loss is {result.loss}")
        progress.validations.append((progress.steps, result))
        self.log(
            {
                "event": "val",
                "step": progress.steps,
                "val_loss": result.loss,
                "val_loss_tokens": result.loss_tokens,
                "val_seconds": result.seconds,
                "total_real_tokens": progress.speed.total.real_tokens,
                "wall_seconds": self.yardstick.wall_seconds,
            }
        )
        self.console.say(
            f"validation after step {progress.steps}: loss {result.loss:.4f} over "
            f"{result.loss_tokens:,} loss tokens, {result.seconds:.1f} s"
        )
