"""Which jobs a sweep has, and in what order, from the plain product of its choices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from data.packing.settings import PackingMode

# The words of one job, as they would be typed: ("packing=none", "seed=1").
type Job = tuple[str, ...]

_PACKED = frozenset({PackingMode.TRAINER, PackingMode.LOADER})

# What only matters for some who pack. A group's name stands for its options and their keys.
_MATTERS_FOR = {
    "packer": _PACKED,
    "packing.kernel_boundaries": _PACKED,
    "packing.buffer_size": frozenset({PackingMode.LOADER}),
    "packing.level_window": frozenset({PackingMode.LOADER}),
    "train.micro_batch_size": frozenset({PackingMode.NONE}),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The jobs of a sweep.

    Attributes:
        jobs: in the order in which they run.
        notes: what was left out, a sentence each.
    """

    jobs: list[Job]
    notes: list[str]


def plan_jobs(
    product: Sequence[Job],
    mode_of: Callable[[Job], PackingMode | None],
    *,
    offered: Collection[str] = (),
) -> Plan:
    """Leave out what changes nothing, so that no job runs twice, and interleave the seeds.

    A setting that was asked for and changes nothing for any job stays, and is refused like in a
    single run.

    Args:
        product: every combination of the choices.
        mode_of: who packs in a job; None where that cannot be told.
        offered: keys that nobody asked for: an experiment has choices for them.
    """
    modes = [mode_of(job) for job in product]
    dropped: dict[str, set[PackingMode]] = {}
    jobs: list[Job] = []
    seen: set[Job] = set()
    for job, mode in zip(product, modes, strict=True):
        kept = tuple(word for word in job if not _is_idle(word, mode, modes, offered))
        for word in set(job) - set(kept):
            assert mode is not None
            dropped.setdefault(_subject(word) or "", set()).add(mode)
        # Only where something was left out: who asks for a job twice gets it twice.
        if kept == job or kept not in seen:
            jobs.append(kept)
        seen.add(kept)
    notes = [
        f"{key} changes nothing with packing={' or '.join(sorted(m.value for m in where))} and is "
        "left out there"
        for key, where in dropped.items()
    ]
    if len(jobs) < len(product):
        notes.append(f"{len(jobs)} of {len(product)} combinations remain")
    return Plan(jobs=interleave(jobs), notes=notes)


def interleave(jobs: Sequence[Job]) -> list[Job]:
    """All jobs of the first seed, then all of the next, each other time in reverse order.

    So a machine that becomes slower or faster in the course of hours does so for every choice.
    """
    by_seed: dict[str | None, list[Job]] = {}
    for job in jobs:
        seeds = [word for word in job if key_of(word) == "seed"]
        by_seed.setdefault(seeds[-1] if seeds else None, []).append(job)
    ordered: list[Job] = []
    for i, same_seed in enumerate(by_seed.values()):
        ordered += reversed(same_seed) if i % 2 else same_seed
    return ordered


def key_of(word: str) -> str:
    """The key that a word sets: ``+a.b=1`` is about ``a.b``."""
    return word.lstrip("+~").partition("=")[0]


def _subject(word: str) -> str | None:
    key = key_of(word)
    return next((k for k in _MATTERS_FOR if key == k or key.startswith(f"{k}.")), None)


def _is_idle(
    word: str,
    mode: PackingMode | None,
    modes: Sequence[PackingMode | None],
    offered: Collection[str],
) -> bool:
    """Whether a word changes nothing for a job, while the sweep has a use for it elsewhere."""
    subject = _subject(word)
    if subject is None or mode is None or mode in _MATTERS_FOR[subject]:
        return False
    # A packer beside packing=none is no mistake in a single run either.
    no_mistake = subject == "packer" or key_of(word) in offered
    return no_mistake or any(m in _MATTERS_FOR[subject] for m in modes)
