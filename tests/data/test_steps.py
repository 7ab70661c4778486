"""Steps of equal real tokens: the rule, its limits, and that both ways of counting agree."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.packing.steps import by_real_tokens, even_steps, real_token_steps


def grouped(tokens, per_step):
    return list(by_real_tokens(tokens, int, Fraction(per_step)))


def test_an_item_goes_to_the_step_that_holds_its_middle():
    # Steps end at 10, 20, 30; the items at 4, 13, 18, 28, 30 with middles at 2, 8.5, 15.5, 23, 29.
    assert grouped([4, 9, 5, 10, 2], 10) == [[4, 9], [5], [10, 2]]
    # A middle on the border begins the next step.
    assert grouped([8, 4, 8], 10) == [[8], [4, 8]]
    assert grouped([], 10) == []
    assert grouped([10, 10, 10], 10) == [[10], [10], [10]]


def test_a_stream_is_cut_evenly_with_nothing_left_over():
    assert even_steps(100, 10) == (10, 10)
    assert even_steps(119, 10) == (11, Fraction(119, 11))
    assert even_steps(3, 10) == (1, 3)


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(50, 300))
def test_every_packing_of_a_stream_makes_the_planned_steps(tokens, at_least):
    steps, per_step = even_steps(sum(tokens), at_least)
    groups = list(by_real_tokens(tokens, int, per_step))
    assert [n for group in groups for n in group] == tokens
    assert len(groups) == steps
    ends = np.cumsum([sum(group) for group in groups])
    for nth, end in enumerate(ends, start=1):
        # Off by half an item at the most, however many steps came before.
        assert abs(int(end) - nth * per_step) <= Fraction(max(tokens), 2)


@given(st.lists(st.integers(1, 50), min_size=1), st.fractions(50, 300, max_denominator=97))
def test_numbering_steps_is_grouping(tokens, per_step):
    of_groups = [
        step for step, group in enumerate(by_real_tokens(tokens, int, per_step)) for _ in group
    ]
    assert real_token_steps(np.array(tokens), per_step).tolist() == of_groups


@pytest.mark.parametrize("tokens", [4_000_000_000, 7])
def test_large_streams_stay_exact(tokens):
    steps, per_step = even_steps(tokens * 1_000_003, tokens)
    numbers = real_token_steps(np.full(1_000_003, tokens), per_step)
    assert numbers.tolist() == list(range(steps))
