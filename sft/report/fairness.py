"""Is it a comparison of who packs and how, and of nothing else?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sft.report.choices import Choice, differing, shown, under
from sft.report.collect import Run
from sft.report.measures import Levels, measure

# What is compared; everything else has to be the same. The batch of a step is judged by what was
# trained on, since slots per step are no measure where padding differs.
COMPARED = (
    "packing.mode",
    "packing.buffer_size",
    "packing.kernel_boundaries",
    "packing.pad_multiple",
    "packer",
    "train.micro_batch_size",
    "train.global_batch_tokens",
    "train.global_batch_samples",
    "train.global_batch_real_tokens",
)
MOST_TOKENS_APART = 0.05


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is not the same.

    Attributes:
        what: in a word or two.
        why: what it means for the comparison.
        values: (value, the choices that have it).
        unfair: False: worth knowing, and no reason to doubt the comparison.
    """

    what: str
    why: str
    values: list[tuple[str, list[str]]]
    unfair: bool = True


# (keys, what, why); the first that fits a key takes it.
_SETTINGS = (
    (("data.tokenizer",), "tokenizer", "the same text is other tokens"),
    (("packing.capacity",), "capacity", "over-long samples are cut or dropped at another length"),
    (("data.num_workers",), "workers", "speed depends on it"),
    (("data",), "data", "the choices see other conversations"),
    (("model",), "model", "another model learns and runs differently"),
    (("optimizer",), "optimizer", "another optimizer learns differently"),
    (("schedule",), "schedule", "another learning rate learns differently"),
    (("train.steps", "train.epochs"), "steps", "more training reaches a lower loss"),
    (("loss",), "loss", "another objective is trained"),
    (("train.eval_every",), "validations", "losses between validations are interpolated"),
    (("train.speed_skip_steps",), "timed steps", "other steps are timed"),
)
_MILD = ("validations", "timed steps")
# What says where the data comes from; the fingerprint says whether it is the same.
_SOURCE = ("path", "val_path", "limit", "val_fraction", "_target_")


def judge(choices: Sequence[Choice]) -> list[Finding]:
    """All findings, the unfair ones first; none for fewer than two choices with runs."""
    choices = [c for c in choices if c.runs]
    if len(choices) < 2:
        return []
    found = [
        *_tokens_per_step(choices),
        *_data(choices),
        *_settings(choices),
        *_seeds(choices),
        *_steps(choices),
        *_machine(choices),
    ]
    return sorted(found, key=lambda finding: not finding.unfair)


def _tokens_per_step(choices: Sequence[Choice]) -> list[Finding]:
    nothing = Levels(real_tokens=None, val_loss=None)
    means = {}
    for choice in choices:
        found = [measure(run, nothing)["real_tokens_per_step"] for run in choice.runs]
        known = [v for v in found if v]
        if known:
            means[choice.label] = sum(known) / len(known)
    if not means:
        return []
    apart = max(means.values()) / min(means.values()) - 1
    if apart <= MOST_TOKENS_APART:
        return []
    ordered = sorted(means.items(), key=lambda item: item[1])
    why = (
        f"up to {apart:.1%} apart; a step that sees more tokens learns more and costs more. With "
        "train.global_batch_real_tokens all steps have as many"
    )
    values = [(f"{tokens:,.0f}", [label]) for label, tokens in ordered]
    return [Finding(what="real tokens per optimizer step", why=why, values=values)]


def _data(choices: Sequence[Choice]) -> list[Finding]:
    prints = _by_value(choices, _fingerprint)
    known = [value for value, _ in prints if value != "not recorded"]
    found = []
    if len(known) > 1:
        found.append(Finding(what="data", why="the choices see other conversations", values=prints))
    elif len(prints) > 1:
        why = "some runs did not record what they trained on"
        found.append(Finding(what="data", why=why, values=prints, unfair=False))
    tokenizers = _by_value(choices, lambda run: run.description.get("tokenizer"))
    if len([v for v, _ in tokenizers if v != "not recorded"]) > 1:
        why = "the same text is other tokens"
        found.append(Finding(what="tokenizer", why=why, values=tokenizers))
    return found


def _fingerprint(run: Run) -> str | None:
    data = run.description.get("data")
    if not isinstance(data, dict):
        return None
    parts = []
    for name in ("train", "val"):
        content = data.get(name)
        if isinstance(content, dict):
            count = content.get("conversations")
            parts.append(f"{name} {count}, {str(content.get('fingerprint'))[:12]}")
    return "; ".join(parts) or None


def _settings(choices: Sequence[Choice]) -> list[Finding]:
    same_data = len(_by_value(choices, _fingerprint)) == 1 and _fingerprint(choices[0].runs[0])
    found = []
    for key in differing([c.settings for c in choices]):
        if under(key, COMPARED):
            continue
        if same_data and key.startswith("data.") and key.removeprefix("data.") in _SOURCE:
            continue
        fits = (row[1:] for row in _SETTINGS if under(key, row[0]))
        what, why = next(fits, ("setting", "it is not part of who packs"))
        values: dict[str, list[str]] = {}
        for choice in choices:
            values.setdefault(shown(choice.settings, key), []).append(choice.label)
        found.append(
            Finding(
                what=f"{what} ({key})",
                why=why,
                values=list(values.items()),
                unfair=what not in _MILD,
            )
        )
    return found


def _seeds(choices: Sequence[Choice]) -> list[Finding]:
    values: dict[str, list[str]] = {}
    for choice in choices:
        values.setdefault(", ".join(map(str, choice.seeds)), []).append(choice.label)
    if len(values) < 2:
        return []
    why = "other orders of the data; differences below are taken within the seeds that both have"
    return [Finding(what="seeds", why=why, values=list(values.items()))]


def _steps(choices: Sequence[Choice]) -> list[Finding]:
    """Equal settings can still give other numbers of steps: an epoch has as many as it takes."""
    steps = {
        choice.label: [s for run in choice.runs if (s := (run.summary or {}).get("steps"))]
        for choice in choices
    }
    known = {label: sum(values) / len(values) for label, values in steps.items() if values}
    if not known or max(known.values()) / min(known.values()) - 1 <= MOST_TOKENS_APART:
        return []
    if differing([c.settings for c in choices if c.settings.get("train.steps")]):
        given = {json.dumps(c.settings.get("train.steps")) for c in choices}
        if len(given) > 1:
            return []  # said already, as a setting
    values = [(f"{n:,.0f}", [label]) for label, n in sorted(known.items(), key=lambda i: i[1])]
    return [Finding(what="optimizer steps", why="more steps reach a lower loss", values=values)]


def _machine(choices: Sequence[Choice]) -> list[Finding]:
    found = []
    for name, what, why, unfair in (
        ("hardware", "hardware", "speeds of other machines do not compare", True),
        ("kernels", "kernels", "speed depends on whose kernels run", True),
        ("versions", "versions", "other versions may run and learn differently", False),
        ("git_commit", "commit", "other code may run and learn differently", False),
    ):
        values = _by_value(choices, lambda run, name=name: run.description.get(name))  # type: ignore[misc]
        if len(values) > 1:
            found.append(Finding(what=what, why=why, values=values, unfair=unfair))
    return found


def _by_value(choices: Sequence[Choice], read: Callable[[Run], Any]) -> list[tuple[str, list[str]]]:
    values: dict[str, list[str]] = {}
    for choice in choices:
        for run in choice.runs:
            labels = values.setdefault(_words(read(run)), [])
            if choice.label not in labels:
                labels.append(choice.label)
    return list(values.items())


def _words(value: Any) -> str:
    if value is None:
        return "not recorded"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items() if v not in ([], None))
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
