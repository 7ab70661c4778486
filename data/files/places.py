"""Where files are: on this machine, or in an object store, through Energon's paths."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from data.errors import first_line

_REMOTE = "msc://"
_WILDCARDS = frozenset("*?[")


class WrongUrl(OSError):
    """A URL of a kind that is not known, or of a profile that is not; says what to change."""


class Place(ABC):
    """A file or a directory. What cannot be looked at or read raises OSError.

    Attributes:
        url: which one, absolute.
    """

    url: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.url).name

    @property
    def local(self) -> Path | None:
        """Its path; None where it is on another machine."""
        return None

    @abstractmethod
    def is_file(self) -> bool:
        """Whether it is a file that is there."""

    @abstractmethod
    def is_dir(self) -> bool:
        """Whether it is a directory that is there."""

    @abstractmethod
    def child(self, path: str) -> Place:
        """What stands at ``path``, seen from this directory; an absolute path stands for itself."""

    @abstractmethod
    def files(self) -> dict[PurePosixPath, Place]:
        """All files below this directory, by their path in it, sorted; no hidden ones."""

    @abstractmethod
    def matches(self, pattern: str) -> list[Place]:
        """What in this directory fits a pattern with wildcards, sorted; nothing hidden."""

    @abstractmethod
    def state(self) -> tuple[str, ...]:
        """Size and age of a file: what differs once the file has changed."""

    @abstractmethod
    def fetched(self) -> Any:
        """A context manager that gives the path of the file, or of a copy on this machine."""

    def read(self) -> bytes:
        """The content of a small file."""
        with self.fetched() as path:
            return Path(path).read_bytes()


@dataclass(frozen=True)
class LocalPlace(Place):
    """On this machine."""

    path: Path

    @property
    def url(self) -> str:  # type: ignore[override]
        """See the class."""
        return str(self.path)

    @property
    def local(self) -> Path:
        """See the class."""
        return self.path

    def is_file(self) -> bool:
        """See the class."""
        return self.path.is_file()

    def is_dir(self) -> bool:
        """See the class."""
        return self.path.is_dir()

    def child(self, path: str) -> Place:
        """See the class."""
        return place(os.path.join(self.path, path) if "://" not in path else path)

    def files(self) -> dict[PurePosixPath, Place]:
        """See the class."""
        found = {}
        for folder, folders, names in os.walk(self.path, onerror=_raise, followlinks=True):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            for name in sorted(n for n in names if not n.startswith(".")):
                path = Path(folder) / name
                found[PurePosixPath(path.relative_to(self.path))] = LocalPlace(path)
        return dict(sorted(found.items()))

    def matches(self, pattern: str) -> list[Place]:
        """See the class."""
        found = glob.glob(pattern, root_dir=self.path, recursive=True)
        if not found:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.listdir(self.path)  # glob does not say that it may not look
        return [LocalPlace(self.path / path) for path in sorted(found)]

    def state(self) -> tuple[str, ...]:
        """See the class."""
        stat = self.path.stat()
        return str(stat.st_size), str(stat.st_mtime_ns)

    @contextmanager
    def fetched(self) -> Iterator[Path]:
        """See the class."""
        yield self.path


@dataclass(frozen=True)
class RemotePlace(Place):
    """In an object store, through Energon's ``EPath`` and the multi-storage client."""

    epath: Any

    @property
    def url(self) -> str:  # type: ignore[override]
        """See the class."""
        return str(self.epath)

    def is_file(self) -> bool:
        """See the class."""
        with _reached():
            return bool(self.epath.is_file())

    def is_dir(self) -> bool:
        """See the class."""
        with _reached():
            return bool(self.epath.is_dir())

    def child(self, path: str) -> Place:
        """See the class."""
        return RemotePlace(self.epath / path)

    def files(self) -> dict[PurePosixPath, Place]:
        """See the class."""
        with _reached():
            return self._sorted(self.epath.walk())

    def matches(self, pattern: str) -> list[Place]:
        """See the class."""
        with _reached():
            return list(self._sorted(self.epath.glob(pattern)).values())

    def _sorted(self, found: Iterable[Any]) -> dict[PurePosixPath, Place]:
        by_path = {PurePosixPath(p.relative_to(self.epath)): p for p in found}
        return {
            path: RemotePlace(by_path[path]) for path in sorted(by_path) if not _is_hidden(path)
        }

    def state(self) -> tuple[str, ...]:
        """See the class."""
        with _reached():
            info = self.epath.stat()
            return str(info.content_length), str(info.etag or ""), info.last_modified.isoformat()

    @contextmanager
    def fetched(self) -> Iterator[Path]:
        """See the class."""
        with tempfile.TemporaryDirectory(prefix="stowage-") as folder:
            copy = Path(folder) / self.name
            with _reached(), self.epath.open("rb") as source, copy.open("wb") as out:
                shutil.copyfileobj(source, out)
            yield copy


@contextmanager
def _reached() -> Iterator[None]:
    """Turn what the multi-storage client raises into an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # of the store's own library: the client has no common class
        raise OSError(f"{type(error).__name__}: {first_line(error)}") from error


def _raise(error: OSError) -> None:
    raise error


def is_remote(path: str) -> bool:
    """Whether a path leads through the multi-storage client."""
    return path.startswith(_REMOTE)


def expanded(path: str) -> Path:
    """A path with ``~`` expanded.

    Raises:
        OSError: the ``~`` is of a user that there is not.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = path.partition("/")[0]
        raise FileNotFoundError(errno.ENOENT, f"{user} is nobody's home") from None


def place(path: str) -> Place:
    """The place that a path names; ``~`` is expanded.

    Raises:
        WrongUrl: it is a URL of a kind that is not known, or of a profile that is not.
        OSError: the ``~`` is of a user that there is not.
    """
    if is_remote(path):
        from megatron.energon.epathlib import EPath

        try:
            return RemotePlace(EPath(path))
        except Exception as error:  # the client has no common class of errors
            raise WrongUrl(
                f"cannot be reached ({first_line(error)}); its profile must be in the configuration"
                " of the multi-storage client, which the environment variable MSC_CONFIG names"
            ) from error
    if "://" in path:
        raise WrongUrl(
            "of URLs only msc://PROFILE/PATH is known, the multi-storage client's; make a profile "
            "for the store in its configuration, or name a file on this machine"
        )
    return LocalPlace(Path(os.path.abspath(expanded(path))))


def is_pattern(path: str) -> bool:
    """Whether a path has wildcards."""
    return bool(_WILDCARDS & set(path))


def split_pattern(path: str) -> tuple[str, str]:
    """The part of a path before its first part with a wildcard, and the rest."""
    start = len(_REMOTE) if is_remote(path) else 0
    parts = path[start:].split("/")
    first = next(i for i, part in enumerate(parts) if is_pattern(part))
    root = "/".join(parts[:first])
    if not start and not root:
        root = "/" if path.startswith("/") else "."
    return path[:start] + root, "/".join(parts[first:])


def _is_hidden(path: PurePosixPath) -> bool:
    return any(part.startswith(".") for part in path.parts)
