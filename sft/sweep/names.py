"""The names of a sweep's directories: each job's says how it differs from the others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence

from sft.sweep.jobs import Job, key_of

# A file's name may have 255 bytes; what is written beside it under a longer name needs some.
_MAX_BYTES = 150


def differences(jobs: Sequence[Job], exclude_keys: Collection[str]) -> list[str]:
    """For each job, the words that not all jobs share, as ``packer=ffd,seed=1``.

    Args:
        jobs: of one sweep.
        exclude_keys: that are in no name.
    """
    shared = set.intersection(*map(set, jobs)) if len(jobs) > 1 else set()
    return [
        ",".join(sorted(w for w in job if w not in shared and key_of(w) not in exclude_keys))
        for job in jobs
    ]


def safe_name(text: str) -> str:
    """A name for one directory: no separators, blanks or quotes, and not too long.

    A name that had to be cut keeps its beginning and ends with a hash of the whole.
    """
    name = re.sub(r"[^\w.,=+@-]+", "_", text).strip("_")
    if name in ("", ".", ".."):
        name = "job"
    encoded = name.encode()
    if len(encoded) <= _MAX_BYTES:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return encoded[: _MAX_BYTES - 9].decode(errors="ignore") + "-" + digest


def safe_path(text: str) -> str:
    """Like :func:`safe_name`, for a path of several directories; it leads nowhere else."""
    parts = [part for part in text.split("/") if part not in ("", ".", "..")]
    return "/".join(map(safe_name, parts)) or "job"


def told_apart(name: str, taken: set[str]) -> str:
    """The name, with a number behind it where it is taken; takes it.

    Args:
        name: wanted.
        taken: in lower case: not every file system tells letters' cases apart.
    """
    candidate, number = name, 2
    while candidate.lower() in taken:
        candidate, number = f"{name}-{number}", number + 1
    taken.add(candidate.lower())
    return candidate
