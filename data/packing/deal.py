"""Which microbatches a step has, and which replica trains which; the same on every process.

It is decided on lengths alone, before any sample travels. All replicas get as many microbatches,
because they wait for each other at every one; where there are too few, padding fills up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from data.balance import imbalance, level
from data.packing.microbatches import Layout
from data.packing.settings import PackingMode
from data.padding import round_up


class Item(Protocol):
    """What is known of a sample or a pack on every process."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of its samples."""

    @property
    def loss_tokens(self) -> int:
        """Positions in it that count in the loss."""


@dataclass(frozen=True)
class Portion:
    """One microbatch as numbers; of padding it has no lengths.

    Attributes:
        items: which items are in it, by index.
        lengths: tokens of each sample.
        slot_tokens: positions computed, padding included.
        real_tokens: positions that hold a token of a sample.
        loss_tokens: positions that count in the loss.
    """

    items: tuple[int, ...]
    lengths: tuple[int, ...]
    slot_tokens: int
    real_tokens: int
    loss_tokens: int

    @property
    def cost(self) -> int:
        """What attention costs: the sum of the squared lengths."""
        return sum(n * n for n in self.lengths)


@dataclass(frozen=True)
class Deal:
    """How a step's items become microbatches of replicas.

    Attributes:
        replicas: for each replica its microbatches, in the order in which it trains them.
        shape: lines and width that all of them have; None: each as it needs.
        fewest_rows: a lower bound on the rows that any packer needs; 0 where nobody packs now.
    """

    replicas: tuple[tuple[Portion, ...], ...]
    shape: tuple[int, int] | None
    fewest_rows: int

    @property
    def portions(self) -> list[Portion]:
        """All microbatches, of all replicas."""
        return [portion for replica in self.replicas for portion in replica]

    @property
    def token_imbalance(self) -> float:
        """How many more slots the fullest replica has than their mean, as a part of it."""
        return _imbalance([sum(p.slot_tokens for p in replica) for replica in self.replicas])

    @property
    def cost_imbalance(self) -> float:
        """The same of what attention costs."""
        return _imbalance([sum(p.cost for p in replica) for replica in self.replicas])


def deal(items: Sequence[Item], layout: Layout, replicas: int) -> Deal:
    """Pack a step's items as the layout says, and level the replicas.

    Attention's cost is levelled; the slots are then level as far as rows are equally full.

    Args:
        items: of the whole step, over all processes.
        layout: who packs, and into what.
        replicas: data-parallel replicas of the model.
    """
    bins = _bins(items, layout)
    shape = _shape(items, bins, layout) if layout.one_shape else None
    portions = [_portion(tuple(members), items, layout, shape) for members in bins]
    missing = -len(portions) % replicas
    portions += [_portion((), items, layout, shape)] * missing
    if replicas == 1:
        dealt: tuple[tuple[Portion, ...], ...] = (tuple(portions),)
    else:
        which = level([p.cost for p in portions], replicas)
        dealt = tuple(tuple(portions[i] for i in mine) for mine in which.tolist())
    fewest = 0
    if layout.mode is PackingMode.TRAINER:
        fewest = layout.fewest_rows([n for item in items for n in item.lengths])
    return Deal(dealt, shape, fewest)


def _bins(items: Sequence[Item], layout: Layout) -> list[list[int]]:
    if layout.mode is PackingMode.LOADER:
        return [[i] for i in range(len(items))]
    if layout.mode is PackingMode.NONE:
        size = layout.micro_batch_size
        return [list(range(i, min(i + size, len(items)))) for i in range(0, len(items), size)]
    return layout.bins([n for item in items for n in item.lengths])


def _shape(items: Sequence[Item], bins: Sequence[Sequence[int]], layout: Layout) -> tuple[int, int]:
    """Lines and width that hold every microbatch."""
    if layout.mode is PackingMode.LOADER:
        return 1, layout.capacity
    widths = [[round_up(sum(items[i].lengths), layout.pad_multiple) for i in b] for b in bins]
    if layout.mode is PackingMode.TRAINER:
        return 1, max(map(sum, widths))
    return max(map(len, bins)), max(map(max, widths))


def _portion(
    members: tuple[int, ...],
    items: Sequence[Item],
    layout: Layout,
    shape: tuple[int, int] | None,
) -> Portion:
    lengths = tuple(n for i in members for n in items[i].lengths)
    if shape is not None:
        slots = shape[0] * shape[1]
    elif layout.mode is PackingMode.LOADER:
        slots = layout.capacity
    else:
        padded = [round_up(n, layout.pad_multiple) for n in lengths] or [layout.pad_multiple]
        none = layout.mode is PackingMode.NONE
        slots = len(padded) * max(padded) if none else sum(padded)
    return Portion(
        items=members,
        lengths=lengths,
        slot_tokens=slots,
        real_tokens=sum(lengths),
        loss_tokens=sum(items[i].loss_tokens for i in members),
    )


def _imbalance(loads: Sequence[int]) -> float:
    return imbalance(loads, np.arange(len(loads), dtype=np.int64)[:, None])


def alike_steps(
    costs: npt.ArrayLike, sizes: Sequence[int], *, seed: int, first_step: int
) -> list[list[int]]:
    """Share the rows of consecutive steps out anew, so that those of one step cost alike.

    The rows are sorted by cost and cut into as many steps of the same sizes; then the steps are
    shuffled. Rows of like cost leave the least for a replica to wait for, however few it gets of
    each step. It depends on no number of processes. O(n log n).

    Args:
        costs: numbers ``[rows]``, step after step as they came.
        sizes: rows of each step.
        seed: of the order of the steps.
        first_step: number of the first of them in the run.

    Returns:
        For each step the indices of its rows, in the order in which they came.
    """
    # The third number keeps this draw apart from those of data.windows.
    rng = np.random.default_rng((seed, first_step, 3))
    order = np.argsort(-np.asarray(costs, dtype=np.float64), kind="stable")
    turns = rng.permutation(len(sizes))
    ends = np.cumsum([sizes[t] for t in turns])
    parts = np.split(order, ends[:-1])
    steps: list[list[int]] = [[] for _ in sizes]
    for turn, part in zip(turns.tolist(), parts, strict=True):
        steps[turn] = sorted(part.tolist())
    return steps
