"""Tight: the fewest bins of several methods, for lengths that first-fit decreasing packs badly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from data.packers._bits import lengths_present
from data.packers._by_length import ByLength
from data.packers._columns import fill_by_patterns
from data.packers._fill import Counts, first_fit_decreasing
from data.packers._first_fit import first_fit
from data.packers._layers import Layers, Runs, bin_count, new_layers, new_runs
from data.packers._mffd_items import modified_first_fit
from data.packers._slack import fill_with_least_slack
from data.packers.bfd import best_fit
from data.packers.bounds import histogram_lower_bound
from data.packers.items import Bins, Items

_BUDGETS = (16, 64, 256, 1024)
_CLASSES = 128
_GOOD_ENOUGH = 1e-3  # above the lower bound; what is left to gain is not worth the search


@dataclass(frozen=True, kw_only=True)
class Tight(ByLength):
    """The packing with the fewest bins that a search of some milliseconds finds.

    It begins with first-fit decreasing, and that is the answer wherever it is within a thousandth
    of the lower bound: on chats it nearly always is. Lengths around a third or a half of the
    capacity (code, documents cut to a size) leave it 3 to 11 % above, and there it is worth trying

    1. minimum bin slack, which fills a bin as full as a short search can, with four budgets;
    2. cutting stock by column generation on 128 classes of lengths, rounded down, and the best of
       the above for what is left over,

    in this order, until one of them is near enough to the bound. The fewest bins win, and the
    earlier one of a tie. All of it works on the histogram of lengths, so the time hardly depends on
    the number of samples.

    Samples that must stay apart, groups together with ``max_samples_per_bin``, and a capacity that
    is too large for tables leave it the best of ``ffd``, ``bfd`` and ``mffd``. With
    ``max_samples_per_bin`` alone, the second method is left out where the limit could come into
    play.

    Source: Gupta and Ho (1999) and Fleszar and Hindi (2002) for minimum bin slack; Gilmore and
    Gomory (1961) for cutting stock; see ``_slack`` and ``_columns``.
    Guarantee: never more bins than first-fit decreasing, hence at most ``11/9 OPT + 6/9``.
    Complexity: O(n), and what the search takes: up to about 0.2 s for 128 or more lengths.
    Ties: of equal lengths the lower index goes first, in the order of the bins.

    First-fit decreasing puts 5 and 4 together and needs a third bin for the 2:

    >>> Tight().pack([5, 4, 3, 3, 3, 2], capacity=10)
    [[0, 2, 5], [1, 3, 4]]
    """

    def _pack_histogram(
        self, count: Counts, capacity: int, most_samples: int
    ) -> tuple[Layers, Runs]:
        bound = max(histogram_lower_bound(count), -(-int(count.sum()) // most_samples))
        best = None
        for candidate in self._candidates(count, capacity, most_samples):
            if best is None or bin_count(candidate[1]) < bin_count(best[1]):
                best = candidate
            if bin_count(best[1]) <= bound * (1 + _GOOD_ENOUGH):
                break
        assert best is not None
        return best

    def _candidates(
        self, count: Counts, capacity: int, most_samples: int
    ) -> Iterator[tuple[Layers, Runs]]:
        """Packings, the cheapest method first."""
        yield first_fit_decreasing(count, capacity, most_samples)
        for budget in _BUDGETS:
            yield _least_slack(count, capacity, most_samples, budget)
        shortest = int(count.nonzero()[0][0])
        if capacity // shortest <= most_samples:
            yield _by_patterns(count, capacity, most_samples)

    def _pack_items(self, items: Items, capacity: int, most_samples: int) -> Bins:
        order = items.longest_first()
        packings = (
            first_fit(items, order, capacity, most_samples),
            best_fit(items, order, capacity, most_samples),
            modified_first_fit(items, capacity, most_samples),
        )
        return min(packings, key=lambda bins: bins[1].size)


def _least_slack(
    count: Counts, capacity: int, most_samples: int, budget: int
) -> tuple[Layers, Runs]:
    samples = int(count.sum())
    layers, layer_count, runs, run_count = fill_with_least_slack(
        count.copy(),
        lengths_present(count),
        capacity,
        most_samples,
        budget,
        new_layers(samples),
        0,
        new_runs(samples),
        0,
        0,
    )
    return layers[:layer_count], runs[:run_count]


def _by_patterns(count: Counts, capacity: int, most_samples: int) -> tuple[Layers, Runs]:
    """Most samples by patterns, the rest by the budget that is best for it."""
    samples = int(count.sum())
    left = count.copy()
    present = lengths_present(count)
    layers, layer_count, runs, run_count = fill_by_patterns(
        left, present, capacity, _CLASSES, new_layers(samples), new_runs(samples)
    )
    budget = min(
        _BUDGETS, key=lambda b: bin_count(_least_slack(left, capacity, most_samples, b)[1])
    )
    bins = bin_count(runs[:run_count])
    layers, layer_count, runs, run_count = fill_with_least_slack(
        left,
        present,
        capacity,
        most_samples,
        budget,
        layers,
        layer_count,
        runs,
        run_count,
        bins,
    )
    return layers[:layer_count], runs[:run_count]
