"""One choice of who packs and how: its rows, steps, work and balance, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from data.balance import imbalance, level, window_order
from data.packers.bounds import lower_bound
from data.packing.settings import PackingMode
from sft.checks import Derived
from sft.config import RunConfig
from sft.flops import TrainingFlops
from sft.preview.lengths import Lengths
from sft.preview.rows import Rows, packed_rows, rectangles
from sft.preview.stream import Stream
from sft.preview.warn import warnings

type Integers = npt.NDArray[np.int64]

_MICRO_BATCHES = (1, 4)  # of `none`, to be held against
_ORDERED_STEPS = 32  # steps among which bins of like cost are put together
_MOST_BALANCED_STEPS = 512  # levelled to measure the balance; a search each


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Settings to preview, and what they are called.

    Attributes:
        config: resolved.
        derived: what follows from it.
        packing: who packs.
        packer: the name of the packer's option; None where nobody packs.
        overrides: what tells this choice from the others, as on the command line.
    """

    config: RunConfig
    derived: Derived
    packing: str
    packer: str | None
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """Short, for people."""
        others = [o for o in self.overrides if o.split("=")[0] not in ("packing", "packer")]
        return " ".join(filter(None, (self.packing, self.packer, *others)))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a choice comes to.

    Attributes:
        content: plain numbers, for ``preview.json``; see :func:`preview_choice`.
        rows: that the numbers were made from.
    """

    content: dict[str, Any]
    rows: Rows


@dataclass(kw_only=True, eq=False)
class Shared:
    """What choices about the same lengths have in common, each worked out once.

    Attributes:
        lengths: of the conversations.
    """

    lengths: Lengths
    _streams: dict[Any, Stream] = field(default_factory=dict)
    _none: dict[Any, tuple[Rows, ...]] = field(default_factory=dict)
    _fewest: dict[Any, int] = field(default_factory=dict)

    def stream(self, choice: Choice) -> Stream:
        """The samples as a run reads and groups them."""
        key = _stream_key(choice)
        if key not in self._streams:
            self._streams[key] = Stream.of(
                self.lengths.tokens, choice.config, choice.derived, self.lengths.shares
            )
        return self._streams[key]

    def none(self, choice: Choice) -> tuple[Rows, ...]:
        """What ``packing=none`` would make of the same stream, for each of its micro-batches."""
        key = (*_order_key(choice), *_batch_key(choice))
        if key not in self._none:
            stream = self.stream(choice)
            if choice.config.packing.mode is PackingMode.LOADER:
                stream = stream.in_steps_of(choice.config.train.global_batch_tokens)
            self._none[key] = tuple(rectangles(stream, size) for size in _MICRO_BATCHES)
        return self._none[key]

    def fewest_over_all(self, choice: Choice) -> int:
        """A lower bound on the rows if the whole stream were packed at once."""
        limit, capacity = choice.config.packer.max_samples_per_bin, choice.config.packing.capacity
        key = (_order_key(choice), limit)
        if key not in self._fewest:
            padded = self.stream(choice).padded
            self._fewest[key] = lower_bound(padded, capacity, max_samples_per_bin=limit)
        return self._fewest[key]


def _order_key(choice: Choice) -> Any:
    config = choice.config
    return (config.train.epochs, config.seed, config.data.shuffle, choice.derived.pad_multiple)


def _stream_key(choice: Choice) -> Any:
    packing = choice.config.packing
    if packing.mode is PackingMode.LOADER:
        # With the batch: a stream of the loader's knows how many real tokens make a step.
        return ("loader", *_order_key(choice), *_batch_key(choice), packing.loader_buffer_size)
    return ("samples", *_order_key(choice), *_batch_key(choice))


def _batch_key(choice: Choice) -> tuple[int | None, ...]:
    train = choice.config.train
    return (
        train.global_batch_tokens,
        train.global_batch_samples,
        train.global_batch_real_tokens,
    )


def preview_choice(choice: Choice, shared: Shared, *, ranks: int, seconds: float) -> Outcome:
    """What training with these settings would meet.

    Args:
        choice: the settings.
        shared: with the lengths of the conversations.
        ranks: data-parallel ranks to measure the balance for.
        seconds: to pack in; where they are too few, the numbers are estimates from a part.
    """
    config, derived = choice.config, choice.derived
    stream, lengths = shared.stream(choice), shared.lengths
    if config.packing.mode is PackingMode.NONE:
        rows = rectangles(stream, derived.micro_batch_size)
    else:
        rows = packed_rows(stream, config, derived, seconds)
    over_all = None if rows.fewest is None else shared.fewest_over_all(choice)
    content: dict[str, Any] = {
        "name": choice.name,
        "packing": choice.packing,
        "packer": choice.packer,
        "overrides": list(choice.overrides),
        "estimated": rows.groups < stream.groups,
        "groups_packed": rows.groups,
        "groups": stream.groups,
        "epochs": stream.epochs,
        **_totals(rows, stream, choice, over_all),
        "samples_per_row": {
            "mean": float(rows.samples.mean()),
            "max": int(rows.samples.max()),
            "one_sample_share": float((rows.samples == 1).mean()),
        },
        "per_step": _per_step(rows, whole=rows.groups == stream.groups),
        "attention": _attention(rows),
        "ranks": _balance(rows, ranks),
        **_held_against_none(rows, shared.none(choice), choice, lengths.loss_share),
    }
    content["warnings"] = warnings(content, rows, lengths, choice)
    return Outcome(content=content, rows=rows)


def _totals(rows: Rows, stream: Stream, choice: Choice, over_all: int | None) -> dict[str, Any]:
    """Rows, slots and steps of all epochs: scaled up where only a part was packed."""
    loader, packs = choice.config.packing.mode is PackingMode.LOADER, choice.derived.packs_per_step
    capacity, padded = choice.config.packing.capacity, int(rows.padded_tokens.sum())
    scale = int(stream.padded.sum()) / padded
    count = round(len(rows) * scale)
    if not loader:
        steps = stream.groups
    elif stream.step_tokens is not None:
        part = rows.groups < stream.groups
        evenly = round(int(stream.lengths.sum()) / stream.step_tokens)
        steps = max(1, evenly) if part else int(rows.step[-1]) + 1
    else:
        steps = -(-count // packs)
    run_steps = choice.config.train.steps or steps

    def scaled(value: int | None) -> int | None:
        return None if value is None else round(value * scale)

    def waste(bins: int | None, tokens: int) -> float | None:
        return None if bins is None else 1 - tokens / (bins * capacity)

    return {
        "samples": stream.lengths.size,
        "real_tokens": int(stream.lengths.sum()),
        "slot_tokens": scaled(int(rows.slot_tokens.sum())),
        "fill": float(rows.real_tokens.sum() / rows.slot_tokens.sum()),
        "rows": count,
        "rows_without_constraints": scaled(rows.unconstrained),
        "fewest_rows": scaled(rows.fewest),
        "fewest_rows_over_all": over_all,
        "waste": None if rows.fewest is None else waste(len(rows), padded),
        "least_waste": waste(rows.fewest, padded),
        "least_waste_over_all": waste(over_all, int(stream.padded.sum())),
        "steps": steps,
        "steps_per_epoch": steps / stream.epochs,
        "run_steps": run_steps,
        "run_epochs": run_steps * stream.epochs / steps,
    }


def _per_step(rows: Rows, *, whole: bool) -> dict[str, Any]:
    by_name = {
        "slot_tokens": rows.slot_tokens,
        "real_tokens": rows.real_tokens,
        "samples": rows.samples,
        "rows": np.ones_like(rows.samples),
    }
    sums = {name: rows.per_step(values) for name, values in by_name.items()}
    if not whole and sums["rows"].size > 1:
        # The last step of a part of the rows is cut short by nothing but that.
        sums = {name: values[:-1] for name, values in sums.items()}
    return {name: _spread(values) for name, values in sums.items()}


def _spread(values: Integers) -> dict[str, float | int]:
    return {"mean": float(values.mean()), "min": int(values.min()), "max": int(values.max())}


def _attention(rows: Rows) -> dict[str, Any]:
    """The squared lengths, and how unlike the rows of a step are in them."""
    begin = np.flatnonzero(np.diff(rows.step, prepend=-1))
    dearest = np.maximum.reduceat(rows.squared_lengths, begin)
    mean = rows.per_step(rows.squared_lengths) / rows.per_step(np.ones_like(rows.samples))
    return {
        "squared_lengths_per_row": _spread(rows.squared_lengths),
        "imbalance_in_step": float(np.mean(dearest / mean - 1)),
    }


def _balance(rows: Rows, ranks: int) -> dict[str, Any] | None:
    """How much longer a step takes than with level ranks, three ways to deal out the rows.

    None where there are not enough rows to give every rank one.
    """
    per_rank = max(1, round(len(rows) / (int(rows.step[-1]) + 1) / ranks))
    steps = min(len(rows) // (ranks * per_rank), _MOST_BALANCED_STEPS)
    if not steps:
        return None
    costs = rows.squared_lengths[: steps * ranks * per_rank].astype(np.float64)
    # [steps, ranks, rows per rank]: dealt out in turn, as cards are.
    in_turn = np.arange(costs.size).reshape(steps, per_rank, ranks).swapaxes(1, 2)
    in_step = costs.reshape(steps, -1)
    levelled = np.stack([level(c, ranks) + i * ranks * per_rank for i, c in enumerate(in_step)])
    ordered = window_order(
        costs, ranks, window_steps=_ORDERED_STEPS, seed=0, bins_per_rank=per_rank
    )
    return {
        "ranks": ranks,
        "rows_per_rank": per_rank,
        "steps": steps,
        "in_turn": imbalance(costs, in_turn),
        "levelled": imbalance(costs, levelled),
        "ordered": imbalance(costs, ordered),
    }


def _held_against_none(
    rows: Rows, none: Sequence[Rows], choice: Choice, loss_share: float | None
) -> dict[str, Any]:
    """FLOPs computed, padding and squares included, and how many more ``none`` would compute.

    Arithmetic, no measurement: as if every FLOP took the same time, in whatever rows.
    """
    config, vocab_size = choice.config, choice.derived.tokenizer.vocab_size
    flops = TrainingFlops.of(config.model, vocab_size, config.lora)
    computed = _over_needed(flops, rows, loss_share)
    # Over what is needed, not per step or row: so a part of the stream can stand for all of it.
    over = [_over_needed(flops, other, loss_share) for other in none]
    fill = [float(other.real_tokens.sum() / other.slot_tokens.sum()) for other in none]
    return {
        "flops_wasted": 1 - 1 / computed,
        "none": {
            "fill": {str(m): f for m, f in zip(_MICRO_BATCHES, fill, strict=True)},
            "estimated_speedup": {
                str(m): o / computed for m, o in zip(_MICRO_BATCHES, over, strict=True)
            },
        },
    }


def _over_needed(flops: TrainingFlops, rows: Rows, loss_share: float | None) -> float:
    """FLOPs that are computed over the model FLOPs of the same samples."""
    real = int(rows.real_tokens.sum())
    loss_tokens = round(real * _or_all(loss_share))
    needed = flops.count(
        tokens=real,
        squared_lengths=int(rows.squared_lengths.sum()),
        loss_tokens=loss_tokens,
    )
    computed = flops.count(
        tokens=int(rows.slot_tokens.sum()),
        squared_lengths=int(rows.squared_segments.sum()),
        loss_tokens=loss_tokens,
    )
    return computed / needed


def _or_all(loss_share: float | None) -> float:
    # Unknown: as if all counted. The output layer is then the most it can be, which makes packing
    # look no better than it is.
    return 1.0 if loss_share is None else loss_share
