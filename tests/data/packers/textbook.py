"""Each packer as a textbook has it, written out as plainly as possible: scans, no structures."""

import numpy as np


class Bins:
    """Bins that are measured anew whenever they are asked.

    ``sizes`` are the samples in each item, ``numbers`` the sets of those that keep items apart.
    """

    def __init__(self, lengths, capacity, limit, sizes=None, numbers=None):
        self.lengths, self.capacity, self.limit = list(lengths), capacity, limit
        self.sizes = sizes or [1] * len(self.lengths)
        self.numbers = numbers or [set()] * len(self.lengths)
        self.bins = []

    def room(self, items):
        return self.capacity - sum(self.lengths[i] for i in items)

    def takes(self, item, items):
        return (
            self.lengths[item] <= self.room(items)
            and sum(self.sizes[i] for i in items) + self.sizes[item] <= self.limit
            and not any(self.numbers[item] & self.numbers[i] for i in items)
        )

    def place(self, item, candidates):
        """Into the first of the candidates, or a new bin if there are none."""
        if not candidates:
            candidates = [[]]
            self.bins.append(candidates[0])
        candidates[0].append(item)

    def first_fit(self, order):
        for i in order:
            self.place(i, [b for b in self.bins if self.takes(i, b)])
        return self.bins

    def descending(self):
        return sorted(range(len(self.lengths)), key=lambda i: (-self.lengths[i], i))


def next_fit(packing):
    for i in range(len(packing.lengths)):
        packing.place(i, [b for b in packing.bins[-1:] if packing.takes(i, b)])
    return packing.bins


def first_fit_decreasing(packing):
    return packing.first_fit(packing.descending())


def shuffled(n, seed):
    """Fisher and Yates, the random number times the choices over 2**32; above 65,536 in piles."""
    random = np.random.default_rng(seed)
    order = np.arange(n)
    counts = [n]
    if n > 65536:
        piles = -(-n // 65536)
        pile = random.integers(piles, size=n, dtype=np.int32)
        order = np.concatenate([np.flatnonzero(pile == p) for p in range(piles)])
        counts = [int((pile == p).sum()) for p in range(piles)]
    numbers = random.integers(2**32, size=n, dtype=np.uint32).tolist()
    order, begin = order.tolist(), 0
    for count in counts:
        for last in range(begin + count - 1, begin, -1):
            chosen = begin + (numbers[last] * (last - begin + 1) >> 32)
            order[last], order[chosen] = order[chosen], order[last]
        begin += count
    return order


def first_fit_shuffle(packing, seed=0):
    return packing.first_fit(shuffled(len(packing.lengths), seed))


def best_fit_decreasing(packing):
    for i in packing.descending():
        taking = [b for b in packing.bins if packing.takes(i, b)]
        packing.place(i, sorted(taking, key=packing.room))  # stable: first opened on a tie
    return packing.bins


def greedy_knapsack(packing):
    left = packing.descending()
    while left:
        packing.bins.append([])
        while taken := [i for i in left if packing.takes(i, packing.bins[-1])]:
            packing.bins[-1].append(taken[0])
            left.remove(taken[0])
    return packing.bins


def balanced_greedy_knapsack(packing, delta=0):
    tokens = sum(packing.lengths)
    packing.bins = [[] for _ in range(-(-tokens // packing.capacity) + delta)]
    for i in packing.descending():
        taking = [b for b in packing.bins if packing.takes(i, b)]
        # The first of the emptiest; and if that has too little room, no other has enough.
        packing.place(i, sorted(taking, key=packing.room, reverse=True))
    return [b for b in packing.bins if b]


def modified_first_fit_decreasing(packing):
    lengths, capacity = packing.lengths, packing.capacity
    classes = {"large": [], "medium": [], "small": [], "tiny": []}
    for i in packing.descending():
        names = [n for n, p in zip(classes, (2, 3, 6), strict=False) if p * lengths[i] > capacity]
        classes[names[0] if names else "tiny"].append(i)
    packing.bins = [[i] for i in classes["large"]]
    for b in packing.bins:
        taken = [i for i in classes["medium"] if packing.takes(i, b)]
        if taken:
            b.append(taken[0])
            classes["medium"].remove(taken[0])
    for b in [b for b in reversed(packing.bins) if len(b) == 1]:
        small = classes["small"]
        shortest = [i for i in sorted(small, key=lambda i: (lengths[i], i)) if packing.takes(i, b)]
        for first in shortest[:1]:
            partners = [i for i in small if i != first and packing.takes(i, [*b, first])]
            for i in [first, partners[0]] if partners else []:
                b.append(i)
                small.remove(i)
    left = [i for name in ("medium", "small", "tiny") for i in classes[name]]
    for b in packing.bins:
        while taken := [i for i in left if packing.takes(i, b)]:
            b.append(taken[0])
            left.remove(taken[0])
    return packing.first_fit(left)


TEXTBOOK = {
    "concatenative": next_fit,
    "ffd": first_fit_decreasing,
    "ffs": first_fit_shuffle,
    "bfd": best_fit_decreasing,
    "mffd": modified_first_fit_decreasing,
    "greedy_knapsack": greedy_knapsack,
    "balanced_greedy_knapsack": balanced_greedy_knapsack,
}


def fewest_bins(lengths, capacity):
    """The optimum: for every set of samples the fewest bins, and the least in the last one."""
    best = [(0, capacity)] * 2 ** len(lengths)  # as if an unseen bin before the first were full
    for chosen in range(1, len(best)):
        ways = []
        for index, length in enumerate(lengths):
            if chosen >> index & 1:
                bins, used = best[chosen ^ 1 << index]
                ways.append(
                    (bins, used + length) if used + length <= capacity else (bins + 1, length)
                )
        best[chosen] = min(ways)
    return best[-1][0]
