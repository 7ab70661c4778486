"""The lengths that a run would read, in its order, cut into the groups that it packs together.

A group is a window of the loader's, or a step where the trainer packs or nobody does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from data.packers.bounds import lower_bound
from data.packing.settings import PackingMode
from data.packing.steps import even_steps, real_token_steps
from data.windows import Share, WindowOrder
from sft.checks import Derived
from sft.config import RunConfig
from sft.order import epoch_rows, training_order

type Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """The samples in the order in which they are trained on, grouped.

    Attributes:
        lengths: int64 ``[samples]``, real tokens.
        padded: int64 ``[samples]``, rounded up to the pad multiple.
        offsets: int64 ``[groups + 1]``: group ``g`` is ``lengths[offsets[g]:offsets[g + 1]]``.
        order: of the conversations; its windows are the groups where the loader packs.
        epochs: passes over the conversations.
        step_tokens: real tokens of a step, on average; None where steps count something else.
    """

    lengths: Integers
    padded: Integers
    offsets: Integers
    order: WindowOrder
    epochs: int
    step_tokens: Fraction | None = None
    _bounds: dict[tuple[int, int | None], int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tokens: Integers,
        config: RunConfig,
        derived: Derived,
        shares: tuple[Share, ...] = (),
    ) -> Stream:
        """What a run reads in ``train.epochs``, or in one epoch where ``train.steps`` is set.

        Args:
            tokens: int64 ``[conversations]``; 0 where one is dropped.
            config: the run's.
            derived: what follows from it.
            shares: how often they come in an epoch, as ``Records.shares`` has it.
        """
        epochs = config.train.epochs or 1
        order = training_order(config, tokens.size, epochs, shares)
        read = tokens[epoch_rows(order)]
        lengths = read[read > 0]
        padded = -(-lengths // derived.pad_multiple) * derived.pad_multiple
        step_tokens = _step_tokens(int(lengths.sum()), config)
        if config.packing.mode is PackingMode.LOADER:
            starts = np.arange(0, read.size, order.window_size)
            kept_before = np.concatenate(([0], np.cumsum(read > 0)))
            offsets = kept_before[np.append(starts, read.size)]
        elif step_tokens is not None:
            offsets = _by_real_tokens(lengths, step_tokens)
        elif config.train.global_batch_samples is not None:
            starts = np.arange(0, lengths.size, config.train.global_batch_samples)
            offsets = np.append(starts, lengths.size)
        else:
            assert config.train.global_batch_tokens is not None
            offsets = _up_to_tokens(padded, config.train.global_batch_tokens)
        return cls(
            lengths=lengths,
            padded=padded,
            offsets=offsets,
            order=order,
            epochs=epochs,
            step_tokens=step_tokens,
        )

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return self.offsets.size - 1

    def in_steps_of(self, slots: int | None) -> Stream:
        """The same samples in the steps that ``packing=none`` makes of them.

        Args:
            slots: the most in a step; None: ``step_tokens`` count.
        """
        if slots is not None:
            offsets = _up_to_tokens(self.padded, slots)
        else:
            assert self.step_tokens is not None
            offsets = _by_real_tokens(self.lengths, self.step_tokens)
        return replace(self, offsets=offsets, _bounds={})

    def fewest_rows(self, group: int, capacity: int, most_samples: int | None) -> int:
        """A lower bound on the rows of one group; remembered, the packers share it."""
        key = (group, most_samples)
        if key not in self._bounds:
            part = self.padded[self.offsets[group] : self.offsets[group + 1]]
            self._bounds[key] = lower_bound(part, capacity, max_samples_per_bin=most_samples)
        return self._bounds[key]


def _step_tokens(total: int, config: RunConfig) -> Fraction | None:
    """What :meth:`sft.feed.Feed.plan` makes of ``train.global_batch_real_tokens``."""
    tokens = config.train.global_batch_real_tokens
    if tokens is None:
        return None
    return Fraction(tokens) if config.train.epochs is None else even_steps(total, tokens)[1]


def _by_real_tokens(lengths: Integers, per_step: Fraction) -> Integers:
    """Where the groups of :func:`data.packing.steps.by_real_tokens` begin and end."""
    begin = np.flatnonzero(np.diff(real_token_steps(lengths, per_step), prepend=-1))
    return np.append(begin, lengths.size)


def _up_to_tokens(padded: Integers, budget: int) -> Integers:
    """Where the groups of :func:`data.packing.steps.up_to_tokens` begin and end."""
    before = np.concatenate(([0], np.cumsum(padded)))
    offsets, at = [0], 0
    while at < padded.size:
        at = int(np.searchsorted(before, before[at] + budget, side="right")) - 1
        offsets.append(at)
    return np.array(offsets, dtype=np.int64)
