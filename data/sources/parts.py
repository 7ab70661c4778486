"""From the settings of data sets to their conversations, and how often these come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt

from data import notes
from data.errors import DataError
from data.files.index import JsonlFile
from data.files.leaves import Leaf, Storage
from data.files.open import open_file
from data.files.places import Place
from data.files.storage import locate
from data.jsonl import Records
from data.sources.sets import SetSettings
from data.windows import Share


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows that come equally often.

    Attributes:
        files: in order.
        rows: int64 ``[n]`` for each file, indices into its rows.
        settings: of the set it belongs to.
        what: what messages call it.
        times: how often each row comes in an epoch; where there is no ``proportion``.
        proportion: instead, the part's share of all rows of its set in an epoch.
    """

    files: tuple[JsonlFile, ...]
    rows: tuple[npt.NDArray[np.int64], ...]
    settings: SetSettings
    what: str
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
        origin = leaf.origin or f"{settings.key}="
        files = tuple(self._open(place, origin) for place in leaf.files)
        what = _what(leaf, origin)
        rows = []
        for place, file in zip(leaf.files, files, strict=True):
            kept = np.arange(len(file), dtype=np.int64)
            if excluded := leaf.excluded.get(place.url):
                labels = np.array([label.encode() for label in excluded])
                kept = kept[~np.isin(file.labels, labels)]
            rows.append(kept)
        return Part(
            files=files,
            rows=_subset(rows, leaf, what),
            settings=settings,
            what=what,
            times=1.0 if leaf.times is None else leaf.times,
            proportion=leaf.proportion,
        )

    def _open(self, place: Place, origin: str) -> JsonlFile:
        if place.url not in self._opened:
            what = f"{origin}{place.url}"
            self._opened[place.url] = open_file(place, self.cache_dir, what=what)
        return self._opened[place.url]


def _what(leaf: Leaf, origin: str) -> str:
    if not leaf.files:
        return origin.rstrip("=: ")
    more = len(leaf.files) - 1
    return f"{origin}{leaf.files[0].url}" + (f" and {more:,} more" if more else "")


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
    part_of_file = np.repeat(np.arange(len(parts)), [len(part.files) for part in parts])
    _refuse_repeated(records, [parts[i].settings.key for i in part_of_file.tolist()])
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
            raise _without_share(part, count)
        if count:
            shares.append(Share(rows=count, per_epoch=per_epoch))
    if all(share.per_epoch == share.rows for share in shares):
        shares = []
    return records.weighted(tuple(shares))


def _without_share(part: Part, count: int) -> DataError:
    if not count:
        return DataError(
            f"{part.what}: has no conversations to train on, and can have no share of a blend; "
            "take it out of the blend, or raise data.limit where that is set"
        )
    own = part.settings
    if part.proportion is None and part.times == 1:
        key = own.split_key.replace("split", "weight")
        weight = f"{key}={own.weight:g}"
        advice = f"set {key} to {1 / count:.2g} or more"
    else:
        weight, advice = "its weight", "raise that, or data.limit where it is set"
    return DataError(
        f"{part.what}: of its {count:,} conversations, {weight} leaves none in an epoch; {advice}, "
        "or leave the data set out"
    )


def _subset(
    rows: list[npt.NDArray[np.int64]], leaf: Leaf, what: str
) -> tuple[npt.NDArray[np.int64], ...]:
    sizes = [part.size for part in rows]
    try:
        start, stop = leaf.subset.range(sum(sizes))
    except ValueError as error:
        raise DataError(
            f"{what}: the subset from record {leaf.subset.start} to {_end(leaf)} cannot be taken "
            f"of it, {error}; change the subset"
        ) from error
    narrowed = []
    first = 0
    for part in rows:
        narrowed.append(part[max(0, start - first) : max(0, stop - first)])
        first += part.size
    return tuple(narrowed)


def _end(leaf: Leaf) -> str:
    return "end" if leaf.subset.stop is None else str(leaf.subset.stop)


def _refuse_without_records(parts: Sequence[Part], url: str, key: str) -> None:
    files = [file for part in parts for file in part.files]
    if not any(len(file) for file in files):
        what, why = f"{key}={url}", "there are no files, or all are empty or blank"
        if len(files) == 1:
            what, why = next(part.what for part in parts if part.files), "it is empty or blank"
        raise DataError(f"{what} holds no conversations, {why}; set {key} to files with records")
    if not any(map(len, parts)):
        raise DataError(
            f"{key}={url}: all its records are excluded, or outside of its subset; change these"
        )
    if all(file.damage and len(file) == 1 for file in files if len(file)):
        file = next(file for file in files if file.damage)
        raise DataError(
            f"{key}={url} cannot be used: {file.damage} ({file.source_id(0)}); mend it, or set "
            f"{key} to other files"
        )


def _refuse_repeated(records: Records, keys: Sequence[str]) -> None:
    """Refuse a row that comes twice; ``keys`` are those of the sets that the files are of."""
    number = {id(file): i for i, file in enumerate(records.files)}
    file_of = np.array([number[id(file)] for file in records.files])[records.file_of]
    pairs = np.stack([file_of, records.rows], axis=1)
    _, first, times = np.unique(pairs, axis=0, return_index=True, return_counts=True)
    if times.size and times.max() > 1:
        twice = int(first[times > 1][0])
        here = np.flatnonzero((pairs == pairs[twice]).all(axis=1))
        found = list(dict.fromkeys(keys[int(records.file_of[row])] for row in here))
        holds = f"{found[0]}: holds" if len(found) == 1 else f"{' and '.join(found)}: hold"
        raise DataError(
            f"{holds} {records.source_id(twice)} twice; name each file once, and where it is to "
            "come more often, in data.sets with a weight"
        )
