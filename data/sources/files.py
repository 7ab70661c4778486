"""The user's own conversations, in files of any kind that :mod:`data.files` knows."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from data.jsonl import Records, split_by_conversation
from data.sources.base import Counts, DataSource, PreparedData
from data.sources.parts import Library, Part, limited, records_of, weighted
from data.sources.sets import SetSettings, check_path


@dataclass(frozen=True, kw_only=True)
class StoredSource(DataSource):
    """Data sets in files; others to validate on, or a split, or a share of the conversations.

    Attributes:
        val_path: what to validate on, a file, a directory, a pattern, or a list of these; all of it
            is used, once whatever the weights, and ``val_fraction`` is not.
        val_split: which split to validate on, of ``val_path`` where that is set, else of what is
            trained on.
        cache_dir: directory for what has to be converted.
    """

    val_path: Any = None
    val_split: str | None = None
    cache_dir: str = "datasets"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.training_sets()
        if self.val_path is not None:
            check_path(self.val_path, "data.val_path")

    @abstractmethod
    def training_sets(self) -> list[SetSettings]:
        """What to train on.

        Raises:
            ValueError: the settings that say it are wrong.
        """

    def prepare(self) -> PreparedData:
        """Find and index the files.

        Raises:
            DataError: a file is missing, empty or of no use, or there is too little to split.
        """
        library = Library(self.cache_dir)
        parts = [part for s in self.training_sets() for part in library.training_parts(s)]
        records = limited(parts, records_of(parts), self.limit)
        if self.val_path is None and self.val_split is None:
            train, val = split_by_conversation(records, self.val_fraction)
        else:
            train, val = records, self._validation(library)
        library.name_files()
        return PreparedData(
            train=weighted(parts, train), val=val, name=_name(parts), notes=_counts(parts)
        )

    def _validation(self, library: Library) -> Records:
        settings = self.training_sets()
        if self.val_path is not None:
            path = check_path(self.val_path, "data.val_path")
            settings = [SetSettings(path=path, key="data.val_path", split_key="data.val_split")]
        parts = [p for s in settings for p in library.validation_parts(s, self.val_split)]
        return records_of(parts)


@dataclass(frozen=True, kw_only=True)
class FilesSource(StoredSource):
    """One data set.

    Attributes:
        path: a file, a directory, a pattern, or a list of these.
        split: which split of ``path`` to train on; None: ``train``, where it is divided.
    """

    path: Any
    split: str | None = None

    def training_sets(self) -> list[SetSettings]:
        """The one set."""
        path = check_path(self.path, "data.path")
        return [SetSettings(path=path, key="data.path", split=self.split, split_key="data.split")]


def _counts(parts: list[Part]) -> Counts:
    counts: Counts = {"rows": sum(map(len, parts))}
    if len({part.settings.key for part in parts}) > 1:
        by_set: dict[str, int] = {}
        for part in parts:
            by_set[part.settings.key] = by_set.get(part.settings.key, 0) + len(part)
        counts["rows_of_sets"] = by_set
    return counts


def _name(parts: list[Part]) -> str:
    sets = {part.settings.key for part in parts}
    if len(sets) > 1:
        return f"{len(sets)} data sets"
    files = {id(file): file for part in parts for file in part.files}
    return next(iter(files.values())).name if len(files) == 1 else f"{len(files)} files"
