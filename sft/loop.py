"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from data.packing.microbatches import to_microbatches
from data.shared_stream import SharedStream
from sft.build import Trainee
from sft.checkpoint import CheckpointWriter
from sft.collectives import gathered, said_once
from sft.console import RunConsole
from sft.errors import TrainingError
from sft.feed import Feed, Step
from sft.loggers.base import Metrics, Scalar
from sft.metrics import Counts, Histograms, PhaseTimer, Speed, Yardstick
from sft.step import StepRunner, refuse_non_finite
from sft.validate import Validation


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        steps: optimizer steps done.
        speed: counts and times.
        histograms: of what was trained on.
        last_loss: of the last step.
        validations: (step, result), in order.
        rows: that the trainer has packed.
        fewest_rows: a lower bound on the rows those steps need, by any packer.
    """

    speed: Speed
    histograms: Histograms
    steps: int = 0
    last_loss: float | None = None
    validations: list[tuple[int, Validation]] = field(default_factory=list)
    rows: int = 0
    fewest_rows: int = 0


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
    yardstick: Yardstick
    log: Callable[[Metrics], None]
    console: RunConsole

    def train(
        self, stream: SharedStream, steps: Iterator[Step], progress: Progress
    ) -> Progress:
        """Train until the steps are done.

        Args:
            stream: of the training conversations.
            steps: that it is cut into.
            progress: how far the run has come.

        Raises:
            TrainingError: a loss or a gradient that is not finite.
        """
        self._validate(progress)
        start = time.perf_counter()
        while progress.steps < self.steps:
            metrics = self._step(stream, steps, progress)
            self.log(metrics)
            done = progress.steps
            # Validation between the steps takes its share of the wall time too.
            eta = (time.perf_counter() - start) / done * (self.steps - done)
            self.console.step(metrics, step=done, steps=self.steps, eta_seconds=eta)
            # Before validation, which may find that the run has diverged: then there is more to
            # look into.
            if self._due(self.save_every, done):
                self.checkpoints.save(done, {})
            if self._due(self.eval_every, done):
                self._validate(progress)
        return progress

    def _due(self, every: int | None, done: int) -> bool:
        """Whether it is time for what happens every so many steps, and at the end."""
        if every is None:
            return False
        return done == self.steps or (every > 0 and done % every == 0)

    def _step(
        self, stream: SharedStream, steps: Iterator[Step], progress: Progress
    ) -> dict[str, Scalar]:
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
            ids = list(dict.fromkeys(i for part in gathered(mine) for i in part))
            raise said_once(TrainingError(
                f"step {step}: the gradient norm is {grad_norm}; the step trained on "
                f"{', '.join(ids[:8])}{' ...' if len(ids) > 8 else ''}. Lower optimizer.lr"
            ))
        progress.steps = step
        progress.last_loss = loss.value
        progress.speed.add(counts, timer)
        imbalance = progress.histograms.add(portions)
        return {
            "event": "train",
            "step": step,
            "loss": loss.value,
            "lr": lr,
            "grad_norm": grad_norm,
            "slot_tokens": counts.slot_tokens,
            "real_tokens": counts.real_tokens,
            "loss_tokens": counts.loss_tokens,
            "samples": counts.samples,
            "microbatches": counts.microbatches,
            "fill": counts.fill,
            "total_real_tokens": progress.speed.total.real_tokens,
            "squared_length_sum": counts.squared_length_sum,
            "attention_imbalance": imbalance,
            "rank_token_imbalance": dealt.token_imbalance,
            "rank_cost_imbalance": dealt.cost_imbalance,
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
