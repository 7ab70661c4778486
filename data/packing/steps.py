"""How a stream of samples or of finished rows is cut into optimizer steps. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Sized(Protocol):
    """Anything that takes a number of slots."""

    def __len__(self) -> int:
        """Tokens."""
        ...


def in_groups_of[T](items: Iterable[T], count: int) -> Iterator[list[T]]:
    """Consecutive groups of ``count``; the last may be smaller."""
    group: list[T] = []
    for item in items:
        group.append(item)
        if len(group) == count:
            yield group
            group = []
    if group:
        yield group


def up_to_tokens[S: Sized](
    samples: Iterable[S], budget: int, pad_multiple: int
) -> Iterator[list[S]]:
    """Consecutive groups whose padded lengths sum to at most ``budget`` tokens.

    The sample that would pass the budget waits for the next group; a sample is never longer than
    the budget (checked at start-up), so no group is empty.
    """
    group: list[S] = []
    used = 0
    for sample in samples:
        slots = -(-len(sample) // pad_multiple) * pad_multiple
        if group and used + slots > budget:
            yield group
            group, used = [], 0
        group.append(sample)
        used += slots
    if group:
        yield group


def by_real_tokens[T](
    items: Iterable[T], tokens_of: Callable[[T], int], per_step: Fraction, before: int = 0
) -> Iterator[list[T]]:
    """Consecutive groups that hold ``per_step`` real tokens each, on average.

    An item, be it a sample or a finished row, goes to the step in which its middle lies when all
    tokens are put end to end. A step is thus off by less than one item, and these errors do not
    add up: samples and rows of whatever fill make as many steps of the same stream.

    Args:
        items: in order; none holds more than ``per_step`` tokens, so no step is left out.
        tokens_of: the real tokens of an item.
        per_step: real tokens.
        before: real tokens of what came before these items, in steps of their own.
    """
    group: list[T] = []
    step = 0
    for item in items:
        tokens = tokens_of(item)
        own = _step_of_middle(2 * before + tokens, per_step)
        if group and own != step:
            yield group
            group = []
        step = own
        group.append(item)
        before += tokens
    if group:
        yield group


def even_steps(total: int, at_least: int) -> tuple[int, Fraction]:
    """Into how many equal steps a finite stream is cut, and the real tokens of each.

    Args:
        total: real tokens of the stream.
        at_least: real tokens that a step is to have; more, so that none is left short.
    """
    steps = max(1, total // at_least)
    return steps, Fraction(total, steps)


def real_token_steps(tokens: npt.NDArray[np.int64], per_step: Fraction) -> npt.NDArray[np.int64]:
    """The step of each item as :func:`by_real_tokens` groups them, int64 ``[n]``.

    Args:
        tokens: int64 ``[n]``, the real tokens of each.
        per_step: real tokens.
    """
    after = np.cumsum(tokens)
    steps: npt.NDArray[np.int64] = _step_of_middle(2 * after - tokens, per_step)
    return steps


def _step_of_middle(twice: Any, per_step: Fraction) -> Any:
    # In whole numbers: which side of a border a middle falls on must not hang on rounding.
    return twice * per_step.denominator // (2 * per_step.numerator)
