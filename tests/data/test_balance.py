"""Level ranks: what bins cost, who gets which, and which share a step."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.balance import Cost, imbalance, level, window_order
from data.packers import load_packer

type Floats = npt.NDArray[np.float64]
type Ints = npt.NDArray[np.int64]

# verl's model of a 7 B transformer: attention overtakes the rest at 24,576 tokens.
VERL = Cost(per_token=24576, per_squared_token=1)


def dearest(costs: npt.ArrayLike, assignment: Ints) -> float:
    return float(np.asarray(costs, dtype=np.float64)[assignment].sum(axis=-1).max())


def dealt_in_turn(bins: int, ranks: int) -> Ints:
    return np.arange(bins).reshape(-1, ranks).T


def longest_first_alone(costs: list[float], ranks: int) -> Ints:
    """What level starts from, in the most obvious way."""
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        free = [r for r in range(ranks) if len(dealt[r]) < len(costs) // ranks]
        dealt[min(free, key=lambda r: (sum(costs[i] for i in dealt[r]), r))].append(index)
    return np.array(dealt, dtype=np.int64).reshape(ranks, -1)


def optimum(costs: Floats, ranks: int) -> float:
    """The cheapest dearest rank of all ways to deal in equal numbers."""
    per_rank = costs.size // ranks
    best = np.inf

    def search(left: tuple[int, ...], highest: float) -> None:
        nonlocal best
        if highest >= best:
            return
        if not left:
            best = highest
            return
        for others in combinations(left[1:], per_rank - 1):
            rest = tuple(i for i in left[1:] if i not in others)
            search(rest, max(highest, float(costs[left[0]] + costs[list(others)].sum())))

    search(tuple(range(costs.size)), 0.0)
    return float(best)


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[float], int]:
    """Costs of a step and its ranks: whole numbers, which tie often, or any floats."""
    ranks, per_rank = draw(st.integers(1, 6)), draw(st.integers(0, 5))
    whole = st.integers(0, 9).map(float)
    floats = st.floats(0, 1e15, allow_subnormal=True)
    size = ranks * per_rank
    return draw(st.lists(draw(st.sampled_from([whole, floats])), min_size=size, max_size=size)), (
        ranks
    )


# --- cost


def test_cost_by_hand() -> None:
    cost = Cost(per_token=10, per_squared_token=2)
    bins = np.array([2, 0, 1], dtype=np.int32), np.array([0, 2, 3])
    # Bin 0: 4 and 3 tokens, 70 + 2 * 25. Bin 1: 5 tokens, 50 + 2 * 25.
    assert cost.of_bins([3, 5, 4], *bins).tolist() == [120, 100]
    assert cost.of_bins([3, 5, 4], *bins).dtype == np.float64


def test_one_sample_costs_more_than_its_halves() -> None:
    bins = np.array([0, 1, 2]), np.array([0, 1, 3])
    lengths = [8, 4, 4]
    attention = Cost(per_token=0, per_squared_token=1)
    assert attention.of_bins(lengths, *bins).tolist() == [64, 32]
    assert Cost(per_token=1, per_squared_token=0).of_bins(lengths, *bins).tolist() == [8, 8]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, np.uint32])
def test_squares_do_not_overflow(dtype: type[np.integer]) -> None:
    lengths = np.array([60000, 65000], dtype=dtype)
    cost = Cost(per_token=0, per_squared_token=1)
    assert cost.of_bins(lengths, np.array([1, 0]), np.array([0, 2])) == [60000**2 + 65000**2]
    million = cost.of_bins([1_000_000], np.array([0]), np.array([0, 1]))
    assert million == [1e12]


def test_no_bins_and_empty_bins() -> None:
    nothing = VERL.of_bins([], *load_packer("ffd").pack_csr([], 8))
    assert nothing.shape == (0,) and nothing.dtype == np.float64
    empty = np.array([], dtype=np.int32)
    assert VERL.of_bins([5], empty, np.array([0, 0, 0])).tolist() == [0, 0]
    assert VERL.of_bins([1], np.array([0]), np.array([0, 0, 1, 1])).tolist() == [0, 24577, 0]


@given(lengths=st.lists(st.integers(1, 100), max_size=40))
def test_cost_is_the_sum_over_a_bin_s_samples(lengths: list[int]) -> None:
    indices, offsets = load_packer("ffd").pack_csr(lengths, 100)
    bins = load_packer("ffd").pack(lengths, 100)
    wanted = [sum(3 * lengths[i] + 0.5 * lengths[i] ** 2 for i in members) for members in bins]
    cost = Cost(per_token=3, per_squared_token=0.5)
    assert cost.of_bins(lengths, indices, offsets).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_costs_that_cannot_be_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=f"per_token must be 0 or above and finite, got {wrong}"):
        Cost(per_token=wrong, per_squared_token=1)
    with pytest.raises(ValueError, match=f"per_squared_token must be .* finite, got {wrong}"):
        Cost(per_token=1, per_squared_token=wrong)


def test_a_cost_of_nothing_is_refused_and_a_cost_stays() -> None:
    with pytest.raises(ValueError, match="are both 0: every bin would be free"):
        Cost(per_token=0, per_squared_token=0)
    with pytest.raises(FrozenInstanceError):
        VERL.per_token = 1  # type: ignore[misc]


# --- level


def test_level_by_hand() -> None:
    assert level([9, 8, 7, 6, 5, 4], ranks=2).tolist() == [[0, 3, 4], [1, 2, 5]]
    assert level([4, 5, 6, 7, 8, 9], ranks=2).tolist() == [[5, 2, 1], [4, 3, 0]]


def test_swaps_level_what_dealing_alone_does_not() -> None:
    costs = [3.0, 3, 2, 2, 2, 0]
    # Dealt longest first: 3 + 2 + 2 and 3 + 2 + 0.
    assert dearest(costs, longest_first_alone(costs, 2)) == 7
    assert sorted(np.array(costs)[level(costs, 2)].tolist()) == [[2, 2, 2], [3, 3, 0]]


def test_of_two_dearest_ranks_both_are_relieved() -> None:
    costs = [3.0, 3, 2, 2, 2, 0] * 2
    alone = np.array(costs)[longest_first_alone(costs, 4)].sum(axis=1)
    assert sorted(alone) == [5, 5, 7, 7]
    assert np.array(costs)[level(costs, 4)].sum(axis=1).tolist() == [6, 6, 6, 6]


@pytest.mark.parametrize(
    ("costs", "ranks", "wanted"),
    [
        ([1, 1, 1, 1, 1, 1], 3, [[0, 3], [1, 4], [2, 5]]),  # equal ones go round, lower index first
        ([0, 0, 0, 0], 2, [[0, 1], [2, 3]]),  # no rank ever becomes dearer than the first
        ([1, 3, 2, 3], 1, [[1, 3, 2, 0]]),  # a rank's bins: dearest first, then lower index
        ([1, 3, 2, 3], 4, [[1], [3], [2], [0]]),
        ([5, 0, 0, 0], 2, [[0, 3], [1, 2]]),
        ([7], 1, [[0]]),
        ([], 3, [[], [], []]),
    ],
)
def test_ties_and_edges(costs: list[float], ranks: int, wanted: list[list[int]]) -> None:
    dealt = level(costs, ranks)
    assert dealt.tolist() == wanted
    assert dealt.dtype == np.int64


@given(steps())
@example(([0.1, 0.2, 0.3, 0.1, 0.2, 0.3], 2))
@example(([5e-324, 0.0, 5e-324, 5e-324], 2))
@example(([1.0, np.nextafter(1, 2), np.nextafter(1, 0), 1.0], 2))
@settings(max_examples=200, deadline=None)
def test_level_keeps_its_contract(step: tuple[list[float], int]) -> None:
    costs, ranks = step
    array = np.array(costs)
    dealt = level(array, ranks)
    assert dealt.shape == (ranks, len(costs) // ranks)
    assert sorted(dealt.ravel().tolist()) == list(range(len(costs)))
    assert array.tolist() == costs
    assert level(costs, ranks).tolist() == dealt.tolist()
    for members in dealt.tolist():
        assert members == sorted(members, key=lambda i: (-costs[i], i))
    if costs:
        rounding = 1 + 1e-12
        assert dearest(costs, dealt) <= dearest(costs, longest_first_alone(costs, ranks)) * rounding


@given(steps())
@settings(max_examples=100, deadline=None)
def test_no_swap_is_left_that_would_help(step: tuple[list[float], int]) -> None:
    costs, ranks = step
    loads = np.array(costs)[dealt := level(costs, ranks)].sum(axis=1)
    if not costs or imbalance(costs, dealt) <= 1e-6:
        return
    top = int(loads.argmax())
    for other in range(ranks):
        for x in dealt[top]:
            for y in dealt[other]:
                moved = costs[x] - costs[y]
                after = max(loads[top] - moved, loads[other] + moved)
                assert other == top or after >= loads[top] * (1 - 1e-8)


@given(step=steps(), power=st.integers(-40, 40))
@settings(max_examples=50, deadline=None)
def test_the_unit_of_cost_is_free(step: tuple[list[float], int], power: int) -> None:
    # A power of two, so that nothing is rounded.
    costs, ranks = [c if c > 1e-200 else 0.0 for c in step[0]], step[1]
    assert level([c * 2.0**power for c in costs], ranks).tolist() == level(costs, ranks).tolist()


def test_near_the_optimum() -> None:
    random = np.random.default_rng(5)
    ratios = []
    for trial in range(150):
        ranks, per_rank = [(2, 2), (2, 3), (3, 2), (2, 4), (3, 3)][trial % 5]
        size = ranks * per_rank
        costs = random.lognormal(0, 1, size) if trial % 2 else random.integers(1, 12, size) * 1.0
        ratios.append(dearest(costs, level(costs, ranks)) / optimum(costs, ranks))
    assert min(ratios) >= 1 - 1e-12
    assert max(ratios) <= 1.1
    assert np.mean(np.array(ratios) < 1 + 1e-9) >= 0.9


@pytest.mark.parametrize(("ranks", "per_rank"), [(2, 4), (8, 4), (8, 8), (64, 8)])
def test_better_than_dealing_in_turn_and_than_longest_first(ranks: int, per_rank: int) -> None:
    random = np.random.default_rng(ranks)
    for _ in range(5):
        costs = random.lognormal(0, 0.5, ranks * per_rank)
        alone = longest_first_alone(costs.tolist(), ranks)
        dealt = level(costs, ranks)
        assert dearest(costs, dealt) <= dearest(costs, alone)
        assert dearest(costs, dealt) <= dearest(costs, dealt_in_turn(costs.size, ranks))


def test_one_bin_that_outweighs_all_gets_the_cheapest_company() -> None:
    costs = [1.0, 2, 3, 4, 1000, 5, 6, 7]
    assert level(costs, 2)[0].tolist() == [4, 2, 1, 0]


def test_what_no_clock_would_see_is_left() -> None:
    # Less than a millionth apart as they were dealt.
    assert level([2, 1, 1, 2 - 1e-7], 2).tolist() == [[0, 2], [3, 1]]
    many = np.random.default_rng(0).random(64) * 1e-12 + 1  # differ by no more than rounding
    assert sorted(level(many, 8).ravel().tolist()) == list(range(64))


@pytest.mark.parametrize(
    ("costs", "ranks", "told"),
    [
        ([1.0] * 10, 4, "10 bins cannot be dealt evenly to 4 data-parallel ranks: their number "
         "must be a multiple of 4; packer.bins_multiple=4 makes it one"),
        ([1.0, -2.0], 2, r"costs\[1\] must be 0 or above and finite, got -2.0"),
        ([1.0, float("nan")], 1, r"costs\[1\] must be 0 or above and finite, got nan"),
        ([float("inf"), 1.0], 1, r"costs\[0\] must be 0 or above and finite, got inf"),
        ([1.0], 0, r"ranks and bins_per_rank must be at least 1, got \(0, 1\)"),
        ([[1.0], [2.0]], 1, r"must be a flat sequence of numbers, got shape \(2, 1\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_dealt_is_refused(costs: list[float], ranks: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        level(costs, ranks)


# --- imbalance


def test_imbalance_by_hand() -> None:
    costs = [3, 1, 2, 2, 0, 0]
    assert imbalance(costs, np.array([[0], [1]])) == 0.5
    assert imbalance(costs, np.array([[0, 1], [2, 3]])) == 0
    # Two steps: 3 and 1, 2 and 2; three, the last one free.
    assert imbalance(costs, np.array([[[0], [1]], [[2], [3]]])) == 0.25
    assert imbalance(costs, np.array([[[0], [1]], [[2], [3]], [[4], [5]]])) == pytest.approx(1 / 6)


def test_imbalance_of_nothing() -> None:
    assert imbalance([0, 0], np.array([[0], [1]])) == 0
    assert imbalance([], level([], 3)) == 0
    assert imbalance([], window_order([], 3, window_steps=2, seed=0)) == 0
    assert imbalance([0.1] * 3, np.array([[0], [1], [2]])) == 0


# --- window_order


def order(costs: npt.ArrayLike, ranks: int, window_steps: int, seed: int = 1, k: int = 1) -> Ints:
    return window_order(costs, ranks, window_steps=window_steps, seed=seed, bins_per_rank=k)


@given(
    step_count=st.integers(0, 12),
    ranks=st.integers(1, 4),
    k=st.integers(1, 3),
    window_steps=st.integers(1, 6),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_windows_hold_neighbours_in_cost(
    step_count: int, ranks: int, k: int, window_steps: int, seed: int, data: st.DataObject
) -> None:
    size = step_count * ranks * k
    whole = st.lists(st.integers(0, 20).map(float), min_size=size, max_size=size)
    costs = np.array(data.draw(whole))
    ordered = order(costs, ranks, window_steps, seed, k)
    assert ordered.shape == (step_count, ranks, k) and ordered.dtype == np.int64
    assert ordered.tolist() == order(costs.tolist(), ranks, window_steps, seed, k).tolist()
    for first in range(0, step_count, window_steps):
        window = ordered[first : first + window_steps]
        start = first * ranks * k
        members = list(range(start, start + window.size))
        assert sorted(window.ravel().tolist()) == members
        by_cost = sorted(members, key=lambda i: (-costs[i], i))
        wanted = [sorted(by_cost[s : s + ranks * k]) for s in range(0, window.size, ranks * k)]
        assert sorted(sorted(s.ravel().tolist()) for s in window) == sorted(wanted)
        for step in window:
            bins = np.sort(step.ravel())
            assert dearest(costs, step) == dearest(costs, bins[level(costs[bins], ranks)])


def test_window_order_by_hand() -> None:
    ordered = order([1, 8, 2, 7, 5, 4, 6, 3], ranks=2, window_steps=2)
    assert sorted(sorted(step.ravel().tolist()) for step in ordered[:2]) == [[0, 2], [1, 3]]
    assert sorted(sorted(step.ravel().tolist()) for step in ordered[2:]) == [[4, 6], [5, 7]]


@pytest.mark.parametrize("k", [1, 2])
def test_a_window_of_one_step_keeps_the_order_of_steps(k: int) -> None:
    costs = np.random.default_rng(0).random(40 * k)
    ordered = order(costs, 4, window_steps=1, k=k)
    for number, step in enumerate(ordered):
        assert sorted(step.ravel().tolist()) == list(range(number * 4 * k, (number + 1) * 4 * k))


def test_the_steps_of_a_window_are_shuffled() -> None:
    costs = np.tile(np.arange(64.0), 30)  # 30 windows alike, of 16 steps
    ordered = order(costs, 4, window_steps=16)
    places = (costs[ordered].max(axis=(1, 2)).reshape(30, 16) // 4).astype(int)
    assert all(sorted(window) == list(range(16)) for window in places.tolist())
    assert len({tuple(window) for window in places.tolist()}) == 30
    # Where a step ends up tells nothing about what it costs.
    assert abs(np.corrcoef(places.ravel(), np.tile(np.arange(16), 30))[0, 1]) < 0.15


def test_the_seed_decides() -> None:
    costs = np.random.default_rng(0).random(64)
    assert order(costs, 4, 8, seed=1).tolist() == order(costs, 4, 8, seed=1).tolist()
    by_seed = [order(costs, 4, 8, seed=seed) for seed in range(5)]
    assert len({tuple(costs[ordered].sum(axis=(1, 2)).round(9)) for ordered in by_seed}) == 5


@pytest.mark.parametrize("k", [1, 2])
def test_no_rank_always_has_the_dearest_bins(k: int) -> None:
    costs = np.random.default_rng(0).lognormal(0, 1, 400 * 4 * k)
    ordered = order(costs, 4, window_steps=8, k=k)
    top = np.bincount(costs[ordered].sum(axis=-1).argmax(axis=1), minlength=4)
    assert top.min() > 70 and top.max() < 130


def test_what_follows_a_window_does_not_change_it() -> None:
    costs = np.random.default_rng(0).random(96)
    whole = order(costs, 4, window_steps=8)
    assert order(costs[:64], 4, window_steps=8).tolist() == whole[:16].tolist()
    assert costs.tolist() == np.random.default_rng(0).random(96).tolist()


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_wider_window_levels_better(k: int) -> None:
    costs = np.random.default_rng(0).lognormal(0, 0.7, 64 * 8 * k)
    found = [imbalance(costs, order(costs, 8, window, k=k)) for window in (1, 4, 16, 64)]
    assert found == sorted(found, reverse=True)
    assert found[2] < found[0] / 5


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"costs": [1.0] * 12}, "12 bins cannot be dealt evenly to 4 data-parallel ranks with 2 "
         "bins each: their number must be a multiple of 8; packer.bins_multiple=8 makes it one"),
        ({"costs": [1.0] * 9, "k": 1}, "9 bins .* ranks: .* packer.bins_multiple=4 makes it one"),
        ({"costs": [-1.0] * 8}, r"costs\[0\] must be 0 or above and finite, got -1.0"),
        ({"window_steps": 0}, "window_steps=0 must be at least 1"),
        ({"seed": -1}, "seed=-1 at least 0"),
        ({"ranks": 0}, r"must be at least 1, got \(0, 2\)"),
        ({"k": 0}, r"must be at least 1, got \(4, 0\)"),
    ],
)  # fmt: skip
def test_orders_that_cannot_be_are_refused(changes: dict[str, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        order(**{"costs": [1.0] * 16, "ranks": 4, "window_steps": 2, "k": 2, **changes})


# --- measured: packed by first-fit decreasing, bins in random order, 8 ranks


@pytest.fixture(scope="module")
def longmix() -> Floats:
    """Mostly short with a few long samples at 32,768 tokens: what some 2,600 bins cost."""
    random = np.random.default_rng(0)
    long = random.random(40_000) < 0.03
    drawn = np.where(long, random.lognormal(9.3, 0.6, 40_000), random.lognormal(6.9, 1.1, 40_000))
    return packed_costs(drawn, 32768)


@pytest.fixture(scope="module")
def chat() -> Floats:
    """Conversations at 4,096 tokens: what some 3,800 bins cost."""
    return packed_costs(np.random.default_rng(0).lognormal(6.2, 1.0, 20_000), 4096)


def packed_costs(drawn: Floats, capacity: int) -> Floats:
    lengths = np.clip(drawn, 1, capacity).astype(np.int64)
    costs = VERL.of_bins(lengths, *load_packer("ffd").pack_csr(lengths, capacity))
    costs = np.random.default_rng(1).permutation(costs)
    return costs[: costs.size // 64 * 64]


@pytest.mark.parametrize(("name", "most"), [("longmix", 0.001), ("chat", 0.0002)])
def test_eight_bins_a_rank_are_level(
    name: str, most: float, request: pytest.FixtureRequest
) -> None:
    costs: Floats = request.getfixturevalue(name)
    by_step = costs.reshape(-1, 64)
    assert np.mean([imbalance(step, level(step, 8)) for step in by_step]) <= most
    assert np.mean([imbalance(step, dealt_in_turn(64, 8)) for step in by_step]) > 20 * most


@pytest.mark.parametrize(("name", "most"), [("longmix", 0.03), ("chat", 0.007)])
def test_one_bin_a_rank_is_level_in_windows(
    name: str, most: float, request: pytest.FixtureRequest
) -> None:
    costs: Floats = request.getfixturevalue(name)
    assert imbalance(costs, order(costs, 8, window_steps=16)) <= most
    assert imbalance(costs, order(costs, 8, window_steps=1)) > 8 * most
