"""What a path stands for: files that are read one after another, perhaps divided into splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from data.errors import DataError
from data.files.places import Place

TRAIN = "train"


@dataclass(frozen=True, kw_only=True)
class Subset:
    """Some consecutive records of a leaf. First those from ``start`` to ``stop``, then a share.

    Attributes:
        start: the first record, counted from 0.
        stop: the one after the last; None: to the end.
        share: from which fraction of the records to which.
        absolute: ``start`` and ``stop`` were given.
    """

    start: int = 0
    stop: int | None = None
    share: tuple[float, float] = (0.0, 1.0)
    absolute: bool = False

    def within(self, outer: Subset) -> Subset:
        """This subset, of which only the share ``outer`` is taken."""
        low, high = self.share
        width = high - low
        share = (low + outer.share[0] * width, low + outer.share[1] * width)
        return Subset(start=self.start, stop=self.stop, share=share, absolute=self.absolute)

    def range(self, records: int) -> tuple[int, int]:
        """First record and the one after the last, of so many.

        Raises:
            ValueError: there are not so many.
        """
        stop = records if self.stop is None else self.stop
        if stop > records or self.start > stop:
            raise ValueError(f"there are {records:,} records")
        low, high = self.share
        return self.start + int((stop - self.start) * low), self.start + int(
            (stop - self.start) * high
        )


ALL = Subset()


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """Files with one weight.

    Attributes:
        files: in order.
        origin: what messages put before a file's URL; empty: the key of the data set and ``=``.
        subset: of all their records together.
        excluded: for a file, by its URL, the labels of records to leave out.
        times: how often each record comes in an epoch; None: not said.
        proportion: instead, the leaf's share of all records in an epoch; None: not said.
    """

    files: tuple[Place, ...]
    origin: str = ""
    subset: Subset = ALL
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    times: float | None = None
    proportion: float | None = None


Leaves = tuple[Leaf, ...]


@dataclass(frozen=True, kw_only=True)
class Storage:
    """What one path stands for.

    Attributes:
        url: the path, for messages.
        splits: how to find the leaves of each split; empty where it is not divided.
        whole: the leaves where it is not divided.
    """

    url: str
    splits: Mapping[str, Callable[[], Leaves]] = field(default_factory=dict)
    whole: Leaves = ()

    def leaves(self, split: str | None, *, key: str, split_key: str) -> Leaves:
        """The files of a split, or all.

        Args:
            split: its name; None: the one to train on, or all where it is not divided.
            key: the configuration key of the path, for messages.
            split_key: the configuration key of the split, for messages.

        Raises:
            DataError: there is no such split.
        """
        known = ", ".join(self.splits)
        if split is None:
            if not self.splits:
                return self.whole
            if TRAIN not in self.splits:
                raise DataError(
                    f"{key}={self.url}: is divided into splits, {known}; say which one to train "
                    f"on, {split_key}=..."
                )
            return self.splits[TRAIN]()
        if not self.splits:
            raise DataError(
                f"{split_key}={split}: {key}={self.url} is not divided into splits; remove "
                f"{split_key}, or name the files to use"
            )
        if split not in self.splits:
            raise DataError(
                f"{split_key}={split}: {key}={self.url} has no such split; it has {known}"
            )
        return self.splits[split]()
