"""What a packing looks like before anybody asks which sample is where.

Packers that look at samples longest first treat equal lengths alike, so they put whole *layers*
at once: ``per_bin`` samples of one length into each of ``bins`` adjacent bins. Such bins then have
equal contents, a *run*; a run may be split, and either part gets layers of its own. A layer knows
the layer below it, so the pattern of a run is the path down from its top layer.

The number of layers depends on how many distinct lengths there are, hardly on how many samples. So
deciding takes a fraction of a millisecond for any number of chats, and the time is spent where the
samples get their places: ``place_samples``, two passes over them.

Layers and runs are rows of two integer arrays, since compiled code that is kept on disk can hold no
objects. Both grow by doubling. They are read and written element by element: a view of a row costs
more than the row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from data.packers._compile import compiled, prefetch

type Layers = npt.NDArray[np.int32]
type Runs = npt.NDArray[np.int64]

# The columns of a layer. STEP is +1 if it was laid from FIRST upwards, -1 downwards; SLOT is how
# many samples each of the bins held before; BELOW is a row number or -1.
LENGTH, PER_BIN, FIRST, BINS, STEP, SLOT, BELOW = range(7)
# The columns of a run, besides FIRST and BINS. KEY, LEFT and RIGHT belong to the heap it is in.
TOP, SIZE, ROOM, KEY, LEFT, RIGHT = 0, 1, 4, 5, 6, 7
_COLUMNS = 8  # of both: a row begins where a line of cache does, or half a line

# Of millions of samples, lengths and places do not fit into the caches, and a processor that
# follows thousands of streams at once does not see them coming by itself.
_AHEAD = 1024  # lengths to ask for in advance; more than that gains nothing
_LINE = 16  # int32 in a line of cache


@compiled
def new_layers(samples: int) -> Layers:
    """An empty table. No layer is without a sample, so few samples need few rows."""
    return np.empty((max(16, min(samples, 8192)), _COLUMNS), np.int32)


@compiled
def new_runs(samples: int) -> Runs:
    """An empty table."""
    return np.empty((max(16, min(samples, 4096)), _COLUMNS), np.int64)


@compiled
def longer[T: np.integer[Any]](rows: npt.NDArray[T], least: int) -> npt.NDArray[T]:
    """A copy of a table with at least ``least`` rows, and twice as many as before."""
    copy = np.empty((max(16, least, 2 * rows.shape[0]), _COLUMNS), rows.dtype)
    copy[: rows.shape[0]] = rows
    return copy


@compiled
def set_layer(
    layers: Layers,
    row: int,
    length: int,
    per_bin: int,
    first: int,
    bins: int,
    step: int,
    slot: int,
    below: int,
) -> None:
    """Fills in a row."""
    layers[row, LENGTH] = length
    layers[row, PER_BIN] = per_bin
    layers[row, FIRST] = first
    layers[row, BINS] = bins
    layers[row, STEP] = step
    layers[row, SLOT] = slot
    layers[row, BELOW] = below


@compiled
def set_run(runs: Runs, row: int, first: int, bins: int, top: int, size: int, room: int) -> None:
    """Fills in a row that is in no heap."""
    runs[row, FIRST] = first
    runs[row, BINS] = bins
    runs[row, TOP] = top
    runs[row, SIZE] = size
    runs[row, ROOM] = room


@compiled
def meld(runs: Runs, one: int, other: int) -> int:
    """Joins two skew heaps of runs, given by their roots or -1; the lower KEY is on top.

    Source: Sleator and Tarjan, "Self-adjusting heaps", SIAM J. Comput. 15 (1986), the top-down
    variant. O(log n) amortised.
    """
    if one < 0:
        return other
    if other < 0:
        return one
    if runs[other, KEY] < runs[one, KEY]:
        one, other = other, one
    root = one
    while True:
        right = runs[one, RIGHT]
        runs[one, RIGHT] = runs[one, LEFT]
        if right < 0:
            runs[one, LEFT] = other
            return root
        if runs[other, KEY] < runs[right, KEY]:
            right, other = other, right
        runs[one, LEFT] = right
        one = right


@compiled
def set_alone(runs: Runs, run: int, key: int) -> None:
    """Makes a run a heap of its own."""
    runs[run, KEY] = key
    runs[run, LEFT] = -1
    runs[run, RIGHT] = -1


@compiled
def without_top(runs: Runs, root: int) -> int:
    """Removes the top of a heap; the new root or -1."""
    rest = meld(runs, runs[root, LEFT], runs[root, RIGHT])
    runs[root, LEFT] = -1
    runs[root, RIGHT] = -1
    return rest


@compiled
def bin_count(runs: Runs) -> int:
    """How many bins the runs cover."""
    bins = 0
    for run in range(runs.shape[0]):
        bins += runs[run, BINS]
    return bins


@compiled
def in_order_of_bins(runs: Runs) -> Runs:
    """Runs by their first bin. They cover the bins without gaps, in any order."""
    bins = bin_count(runs)
    beginning = np.full(bins, -1, np.int32)
    for run in range(runs.shape[0]):
        beginning[runs[run, FIRST]] = run
    ordered = np.empty_like(runs)
    at = 0
    first = 0
    while first < bins:
        ordered[at] = runs[beginning[first]]
        first += ordered[at, BINS]
        at += 1
    return ordered


@compiled
def set_offsets(runs: Runs, offsets: npt.NDArray[np.int64]) -> None:
    """Fills in where each bin begins, ``[bins + 1]``, for runs in the order of their bins."""
    place = 0
    bin_number = 0
    for run in range(runs.shape[0]):
        size = runs[run, SIZE]
        for _ in range(runs[run, BINS]):
            offsets[bin_number] = place
            place += size
            bin_number += 1
    offsets[bin_number] = place


@compiled
def all_within(lengths: npt.NDArray[np.integer[Any]], capacity: int) -> bool:
    """Whether all lengths ``[n]``, of which there is one at least, are in ``[1, capacity]``."""
    least = lengths[0]
    most = lengths[0]
    for sample in range(lengths.size):
        least = min(least, lengths[sample])
        most = max(most, lengths[sample])
    return bool(least >= 1 and most <= capacity)


@compiled
def count_lengths(
    lengths: npt.NDArray[np.integer[Any]], capacity: int
) -> tuple[npt.NDArray[np.int64], bool]:
    """The histogram of lengths ``[n]``.

    Returns:
        Samples of each length, int64 ``[capacity + 1]``; and whether all lengths are in ``[0,
        capacity]``: at the first one that is not, the counting ends.
    """
    count = np.zeros(capacity + 1, np.int64)
    for sample in range(lengths.size):
        prefetch(lengths, sample + _AHEAD)
        length = lengths[sample]
        if length < 0 or length > capacity:
            return count, False
        count[length] += 1
    return count, True


@compiled
def sort_by_length(
    lengths: npt.NDArray[np.integer[Any]],
    count: npt.NDArray[np.int64],
    order: npt.NDArray[np.int32],
) -> npt.NDArray[np.int32]:
    """A stable counting sort of lengths ``[n]``, shortest first, into ``order [n]``.

    Returns:
        Where in ``order`` each length begins, ``[capacity + 1]``. It takes O(n + capacity) time.
    """
    begin = np.empty(count.size, np.int32)
    place = 0
    for length in range(count.size):
        begin[length] = place
        place += count[length]
    at = begin.copy()
    for sample in range(lengths.size):
        prefetch(lengths, sample + _AHEAD)
        length = lengths[sample]
        place = at[length]
        order[place] = sample
        at[length] = place + 1
        if place & (_LINE - 1) == 0:
            prefetch(order, place + _LINE)
    return begin


@compiled
def place_samples(
    order: npt.NDArray[np.int32],
    begin: npt.NDArray[np.int32],
    layers: Layers,
    offsets: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
) -> None:
    """Gives every sample its place: of equal lengths, the lower index the earlier one.

    Args:
        order: the samples by length, ``[n]``.
        begin: where in ``order`` each length begins, ``[capacity + 1]``; moves on to the end of it.
        layers: those of one length in the order in which they were laid.
        offsets: where each bin begins, ``[bins + 1]``.
        indices: ``[n]``, is filled in, as ``Packer.pack_csr`` has it. O(n).
    """
    for row in range(layers.shape[0]):
        per_bin = layers[row, PER_BIN]
        bin_number = layers[row, FIRST]
        step = layers[row, STEP]
        slot = layers[row, SLOT]
        sample = begin[layers[row, LENGTH]]
        begin[layers[row, LENGTH]] += per_bin * layers[row, BINS]
        if per_bin == 1:  # so in most layers, and worth a loop without one inside it
            for _ in range(layers[row, BINS]):
                indices[offsets[bin_number] + slot] = order[sample]
                sample += 1
                bin_number += step
            continue
        for _ in range(layers[row, BINS]):
            place = offsets[bin_number] + slot
            for beside in range(per_bin):
                indices[place + beside] = order[sample + beside]
            sample += per_bin
            bin_number += step
