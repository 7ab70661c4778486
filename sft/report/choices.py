"""Which runs are repetitions of one another: a choice is a configuration but for its seed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sft.report.collect import Run

# What says where things are and how they are shown, not what is trained.
IGNORED = ("seed", "run_dir", "logger", "data.cache_dir", "train.log_every")

Flat = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Runs with one configuration, seeds apart.

    Attributes:
        label: its name for people.
        settings: flat, without what is ignored.
        runs: those that finished.
        failed: those that did not.
    """

    label: str
    settings: Flat
    runs: list[Run]
    failed: list[Run]

    @property
    def mode(self) -> str:
        """Who packs."""
        return str(self.settings.get("packing.mode"))

    @property
    def packer(self) -> str | None:
        """The packer's name; None where nobody packs."""
        return packer_name(self.settings)

    @property
    def seeds(self) -> list[Any]:
        """Of the finished runs, sorted."""
        return sorted({run.seed for run in self.runs}, key=str)


def flatten(config: Mapping[str, Any], prefix: str = "") -> Flat:
    """Nested settings as dotted keys."""
    flat: Flat = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def under(key: str, prefixes: Sequence[str]) -> bool:
    """Whether a key is one of these, or inside one of them."""
    return any(key == p or key.startswith(p + ".") for p in prefixes)


def settings_of(run: Run) -> Flat:
    """A run's settings as a choice sees them: null is what it stands for, no idle packer.

    A seed of a part, a packer's say, that is the run's own is written as the reference that it is:
    repetitions differ in it as they do in theirs.
    """
    flat = {k: v for k, v in flatten(run.config).items() if not under(k, IGNORED)}
    for key, value in flat.items():
        if key.endswith(".seed") and value == run.seed:
            flat[key] = "${seed}"
    mode = flat.get("packing.mode")
    if mode == "none":
        flat = {k: v for k, v in flat.items() if not under(k, ["packer"])}
        if flat.get("train.micro_batch_size") is None:
            flat["train.micro_batch_size"] = 4
    if mode == "loader" and flat.get("packing.buffer_size") is None:
        flat["packing.buffer_size"] = 256
    return flat


def packer_name(settings: Flat) -> str | None:
    """As it is chosen on the command line: the name of the packer's file."""
    target = settings.get("packer._target_")
    return str(target).split(".")[-2 if "." in str(target) else -1] if target else None


def group(runs: Sequence[Run]) -> list[Choice]:
    """Sort runs into choices, in the order in which they first appear."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[json.dumps(settings_of(run), sort_keys=True, default=str)].append(run)
    all_settings = [settings_of(members[0]) for members in groups.values()]
    labels = _labels(all_settings)
    return [
        Choice(
            label=label,
            settings=settings,
            runs=[run for run in members if run.finished],
            failed=[run for run in members if not run.finished],
        )
        for label, settings, members in zip(labels, all_settings, groups.values(), strict=True)
    ]


def differing(all_settings: Sequence[Flat]) -> list[str]:
    """The keys whose values are not the same everywhere, sorted."""
    keys = sorted({key for settings in all_settings for key in settings})
    return [k for k in keys if len({_text(s, k) for s in all_settings}) > 1]


def differing_shown(all_settings: Sequence[Flat]) -> list[str]:
    """The same, without the keys of a packer that differ only in that some have no packer."""
    packing = [s for s in all_settings if "packer._target_" in s]
    inside = set(differing(packing))
    return [
        key
        for key in differing(all_settings)
        if key in inside or key == "packer._target_" or not under(key, ["packer"])
    ]


def shown(settings: Flat, key: str) -> str:
    """A value as it would be typed, a class by its name; a dash where the key is not there."""
    if key not in settings:
        return "–"  # noqa: RUF001
    value = settings[key]
    if key.endswith("_target_"):
        return str(value).rpartition(".")[2]
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


def _text(settings: Flat, key: str) -> str:
    return json.dumps(settings[key], sort_keys=True, default=str) if key in settings else ""


def _labels(all_settings: Sequence[Flat]) -> list[str]:
    """Who packs and with what; what else differs is added where two would have one name."""
    base = [_base_label(settings) for settings in all_settings]
    labels = []
    for settings, label in zip(all_settings, base, strict=True):
        same = [s for s, other in zip(all_settings, base, strict=True) if other == label]
        for key in differing(same):
            label += f" {key.removeprefix('packing.')}={shown(settings, key)}"
        labels.append(label)
    return labels


def _base_label(settings: Flat) -> str:
    mode = str(settings.get("packing.mode"))
    if mode == "none":
        return f"none (micro-batch {settings.get('train.micro_batch_size')})"
    return f"{mode} + {packer_name(settings) or 'no packer'}"
