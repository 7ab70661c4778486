"""From the settings of data sets to their conversations, and how often these come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt

from data import notes
from data.errors import DataError
from data.files.index import JsonlFile
from data.files.leaves import Leaf, Storage
from data.files.open import open_file
from data.files.storage import locate
from data.jsonl import Records, empty
from data.sources.sets import SetSettings
from data.windows import Share


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows that come equally often.

    Attributes:
        files: in order.
        rows: int64 ``[n]`` for each file, indices into its rows.
        settings: of the set it belongs to.
        times: how often each row comes in an epoch; where there is no ``proportion``.
        proportion: instead, the part's share of all rows of its set in an epoch.
    """

    files: tuple[JsonlFile, ...]
    rows: tuple[npt.NDArray[np.int64], ...]
    settings: SetSettings
    times: float
    proportion: float | None

    @property
    def note(self) -> bytes:
        """What goes in front of each line, see :mod:`data.notes`."""
        own = self.settings
        if own.format is None and own.columns is None:
            return b""
        return notes.of_format(own.format or "auto", own.columns or {})

    def __len__(self) -> int:
        return sum(rows.size for rows in self.rows)


@dataclass
class Library:
    """Opens files, each of them once.

    Attributes:
        cache_dir: where what is converted is kept.
    """

    cache_dir: str
    _opened: dict[str, JsonlFile] = field(default_factory=dict)

    def training_parts(self, settings: SetSettings) -> list[Part]:
        """The parts of a data set.

        Raises:
            DataError: nothing is there, or nothing that can be used.
        """
        storage = locate(settings.path, key=settings.key)
        return self._parts(settings, storage, settings.split, settings.split_key)

    def validation_parts(self, settings: SetSettings, split: str | None) -> list[Part]:
        """The parts of a data set, or of one of its splits, to validate on.

        Raises:
            DataError: nothing is there, or nothing that can be used.
        """
        storage = locate(settings.path, key=settings.key)
        if split is None and storage.splits:
            raise DataError(
                f"{settings.key}={storage.url}: is divided into splits, "
                f"{', '.join(storage.splits)}; say which one to validate on, data.val_split=..."
            )
        return self._parts(settings, storage, split, "data.val_split")

    def name_files(self) -> None:
        """Give files with the same name longer ones, with their directories."""
        pending, depth = list(self._opened), 1
        while pending:
            names = {url: "/".join(PurePosixPath(url).parts[-depth:]) for url in pending}
            counts = Counter(names.values())
            for url, name in names.items():
                self._opened[url].name = name
            pending = [url for url, name in names.items() if counts[name] > 1]
            depth += 1

    def _parts(
        self, settings: SetSettings, storage: Storage, split: str | None, split_key: str
    ) -> list[Part]:
        leaves = storage.leaves(split, key=settings.key, split_key=split_key)
        parts = [self._part(leaf, settings) for leaf in leaves]
        _refuse_without_records(parts, storage.url, settings.key)
        return parts

    def _part(self, leaf: Leaf, settings: SetSettings) -> Part:
        files = tuple(
            self._open(place.url, leaf, i, settings) for i, place in enumerate(leaf.files)
        )
        rows = []
        for place, file in zip(leaf.files, files, strict=True):
            kept = np.arange(len(file), dtype=np.int64)
            if excluded := leaf.excluded.get(place.url):
                labels = np.array([label.encode() for label in excluded])
                kept = kept[~np.isin(file.labels, labels)]
            rows.append(kept)
        return Part(
            files=files,
            rows=_subset(rows, leaf, settings.key),
            settings=settings,
            times=1.0 if leaf.times is None else leaf.times,
            proportion=leaf.proportion,
        )

    def _open(self, url: str, leaf: Leaf, i: int, settings: SetSettings) -> JsonlFile:
        if url not in self._opened:
            self._opened[url] = open_file(leaf.files[i], self.cache_dir, key=settings.key)
        return self._opened[url]


def records_of(parts: Sequence[Part]) -> Records:
    """The rows of all parts, one after another."""
    return Records.of(
        [file for part in parts for file in part.files],
        [rows for part in parts for rows in part.rows],
        [part.note for part in parts for _ in part.files],
    )


def limited(parts: Sequence[Part], records: Records, limit: int | None) -> Records:
    """The first so many of these records: of each part its first, in proportion to its size.

    Args:
        parts: that ``records`` was made of.
        records: all rows of ``parts``.
        limit: how many to keep; None: all.
    """
    if limit is None or limit >= len(records):
        return records
    ends = np.cumsum([len(part) for part in parts])
    kept = [0, *(limit * int(end) // len(records) for end in ends)]
    starts = [0, *ends.tolist()]
    spans = [
        np.arange(start, start + high - low)
        for start, low, high in zip(starts, kept, kept[1:], strict=False)
    ]
    return records.take(np.concatenate(spans))


def weighted(parts: Sequence[Part], records: Records) -> Records:
    """These records with the weights of the parts they are of.

    Args:
        parts: that ``records`` were taken from.
        records: in the order of the parts.

    Raises:
        DataError: a weight leaves nothing of a part, or a row is in two parts.
    """
    _refuse_repeated(records)
    part_of_file = np.repeat(np.arange(len(parts)), [len(part.files) for part in parts])
    counts = np.bincount(part_of_file[records.file_of], minlength=len(parts)).tolist()
    totals: Counter[str] = Counter()
    for part, count in zip(parts, counts, strict=True):
        totals[part.settings.key] += count
    shares = []
    for part, count in zip(parts, counts, strict=True):
        if part.proportion is None:
            wanted = part.settings.weight * part.times * count
        else:
            wanted = part.settings.weight * part.proportion * totals[part.settings.key]
        per_epoch = int(wanted + 0.5)
        if (count and not per_epoch) or (part.proportion is not None and not count):
            raise DataError(
                f"{part.settings.key}: {part.files[0].name} has {count:,} conversations to train "
                f"on, and with its weight {per_epoch:,} would come in an epoch; change the weight "
                "or leave it out"
            )
        if count:
            shares.append(Share(rows=count, per_epoch=per_epoch))
    if all(share.per_epoch == share.rows for share in shares):
        shares = []
    return records.weighted(tuple(shares))


def _subset(
    rows: list[npt.NDArray[np.int64]], leaf: Leaf, key: str
) -> tuple[npt.NDArray[np.int64], ...]:
    sizes = [part.size for part in rows]
    try:
        start, stop = leaf.subset.range(sum(sizes))
    except ValueError as error:
        raise DataError(
            f"{key}: the subset from record {leaf.subset.start} to {leaf.subset.stop} cannot be "
            f"taken of {leaf.files[0].url}, {error}"
        ) from error
    narrowed = []
    first = 0
    for part in rows:
        narrowed.append(part[max(0, start - first) : max(0, stop - first)])
        first += part.size
    return tuple(narrowed)


def _refuse_without_records(parts: Iterable[Part], url: str, key: str) -> None:
    files = [file for part in parts for file in part.files]
    if not any(len(file) for file in files):
        raise empty(f"{key}={url}", key)
    if all(file.damage and len(file) == 1 for file in files if len(file)):
        file = next(file for file in files if file.damage)
        raise DataError(f"{key}={url} cannot be used: {file.damage} ({file.source_id(0)})")


def _refuse_repeated(records: Records) -> None:
    number = {id(file): i for i, file in enumerate(records.files)}
    file_of = np.array([number[id(file)] for file in records.files])[records.file_of]
    pairs = np.stack([file_of, records.rows], axis=1)
    _, first, times = np.unique(pairs, axis=0, return_index=True, return_counts=True)
    if times.size and times.max() > 1:
        twice = records.source_id(int(first[times > 1][0]))
        raise DataError(
            f"data.sets: {twice} is in two of them; name each file once, and give it a weight"
        )
