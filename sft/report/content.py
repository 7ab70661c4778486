"""Everything the report says, once: the page, the Markdown and the JSON show the same."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sft.report.choices import Choice, differing_shown, group, shown
from sft.report.collect import Collected, Run
from sft.report.curves import curves, smoothing_steps
from sft.report.fairness import Finding, judge
from sft.report.histograms import lengths, segments
from sft.report.measures import Levels, levels, measure
from sft.report.statistics import Comparison, Drift, Spread, compare, drift
from sft.report.verdict import Verdict, decide


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that is missing from the comparison, and why."""

    name: str
    path: Path
    reason: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """The figures of one choice.

    Attributes:
        choice: whose.
        spreads: by figure, over its finished runs; None for what none measured.
        beside: its speed over the baseline's, as a logarithm; None where it cannot be told.
        place: ``best``; ``joint`` with others, equal within noise; ``slower`` than these; None
            where that cannot be told, or no choice is any faster.
    """

    choice: Choice
    spreads: dict[str, Spread | None]
    beside: Any
    place: str | None


@dataclass(frozen=True, kw_only=True)
class Content:
    """The whole report; :func:`build` makes it."""

    rows: list[Row]
    verdict: Verdict
    findings: list[Finding]
    common: Levels
    baseline: str | None
    speeds: Comparison
    losses: Comparison
    drift: Drift | None
    one_process: bool
    curves: dict[str, dict[str, list[dict[str, Any]]]]
    smoothing: int
    lengths: list[dict[str, Any]]
    segments: list[dict[str, Any]]
    failures: list[Failure]
    differing: list[str]
    runs: list[Run]
    commands: list[str]
    notes: list[str]
    written_at: str

    @property
    def mostly_joint(self) -> bool:
        """Whether so many are equal that the others are worth a mark, and not they."""
        return 2 * sum(row.place == "joint" for row in self.rows) > len(self.rows)

    @property
    def choices(self) -> list[Choice]:
        """In the order of the table: the fastest first."""
        return [row.choice for row in self.rows]


def build(found: Collected) -> Content:
    """Put what was found side by side."""
    choices = group(found.runs)
    common = levels(choices)
    figures = {c.label: [(r.seed, measure(r, common)) for r in c.runs] for c in choices}
    speeds = compare(_by_round(figures, "real_tokens_per_s"), ratios=True)
    losses = compare(_by_seed(figures, "val_loss"), ratios=False)
    ranked = speeds.ranked()
    choices.sort(key=lambda c: ranked.index(c.label) if c.label in ranked else len(ranked))
    baseline = next(
        (c.label for c in choices if c.mode == "none" and c.label in speeds.values), None
    )
    findings = judge(choices)
    verdict = decide(choices, speeds, losses, common, baseline, findings)
    return Content(
        rows=[_row(c, figures[c.label], speeds, baseline, verdict) for c in choices],
        verdict=verdict,
        findings=findings,
        common=common,
        baseline=baseline,
        speeds=speeds,
        losses=losses,
        # Positions in several sweeps are of several clocks.
        drift=drift(_ordered(choices)) if len(found.sweeps) == 1 else None,
        one_process=any(s.get("launcher") == "in_process" for s in found.sweeps.values()),
        curves=curves(choices),
        smoothing=max((smoothing_steps(r) for c in choices for r in c.runs), default=1),
        lengths=lengths(choices),
        segments=segments(choices),
        failures=_failures(found),
        differing=differing_shown([c.settings for c in choices]),
        runs=found.runs,
        commands=_commands(found),
        notes=found.notes,
        written_at=datetime.now().astimezone().isoformat(timespec="minutes"),
    )


_Figures = list[tuple[Any, dict[str, float | None]]]


def _spread(figures: _Figures, name: str) -> Spread | None:
    return Spread.of([values[name] for _, values in figures])


def _by_round(all_figures: dict[str, _Figures], name: str) -> dict[str, dict[Any, float]]:
    """A figure by choice and (seed, which run of it): a seed that ran again tells of the noise."""
    table: dict[str, dict[Any, float]] = {}
    for label, figures in all_figures.items():
        seen: Counter[str] = Counter()
        for seed, values in figures:
            value = values[name]
            if value is not None:
                table.setdefault(label, {})[seed, seen[str(seed)]] = value
            seen[str(seed)] += 1
    return table


def _by_seed(all_figures: dict[str, _Figures], name: str) -> dict[str, dict[Any, float]]:
    """A figure by choice and seed; runs of one choice and seed count as one, their mean.

    They learn the same: to count each would be to see the same evidence twice.
    """
    table: dict[str, dict[Any, float]] = {}
    for label, figures in all_figures.items():
        seeds = dict.fromkeys(seed for seed, _ in figures)
        spreads = {s: _spread([f for f in figures if f[0] == s], name) for s in seeds}
        known = {s: spread.mean for s, spread in spreads.items() if spread}
        if known:
            table[label] = known
    return table


def _row(
    choice: Choice, figures: _Figures, speeds: Comparison, baseline: str | None, verdict: Verdict
) -> Row:
    names = figures[0][1] if figures else {}
    label, beside = choice.label, None
    if baseline and label in speeds.values and label != baseline:
        beside = speeds.difference(label, baseline)
    place = None
    if label in (verdict.fastest, *verdict.equal) and _told_apart(speeds, verdict):
        place = "joint" if verdict.equal else "best"
    elif verdict.fastest and label in speeds.values:
        behind = speeds.difference(verdict.fastest, label)
        place = "slower" if behind and behind.real else None
    spreads = {name: _spread(figures, name) for name in names}
    return Row(choice=choice, spreads=spreads, beside=beside, place=place)


def _told_apart(speeds: Comparison, verdict: Verdict) -> bool:
    """Whether any choice is slower than the fastest by more than noise."""
    best = verdict.fastest
    others = [speeds.difference(best, c) for c in speeds.choices if best and c != best]
    return any(d is not None and d.real for d in others)


def _ordered(choices: Sequence[Choice]) -> list[tuple[str, float, float]]:
    return [
        (choice.label, float(run.order), float(speed))
        for choice in choices
        for run in choice.runs
        if run.order is not None and (speed := (run.summary or {}).get("real_tokens_per_s"))
    ]


def _failures(found: Collected) -> list[Failure]:
    failed = [
        Failure(name=r.path.name, path=r.path, reason=r.problem or "")
        for r in found.runs
        if not r.finished
    ]
    failed += [Failure(name=p.name, path=p, reason=why) for p, why in found.unreadable]
    told = {f.path.resolve() for f in failed} | {r.path.resolve() for r in found.runs}
    for job in found.jobs:
        if job.path.resolve() in told:
            continue
        if job.status == "done":
            reason = "its directory holds no run any more"
        else:
            code = f" (exit code {job.exit_code})" if job.exit_code else ""
            reason = f"{job.status}{code}" + (f": {job.error}" if job.error else "")
        failed.append(Failure(name=job.name, path=job.path, reason=reason))
    return failed


def _commands(found: Collected) -> list[str]:
    """How to repeat it: each sweep's command, and the commands of runs outside any."""
    sweeps = [s["command"] for s in found.sweeps.values() if s.get("command")]
    inside = {job.path.resolve() for job in found.jobs}
    alone = [
        run.description["command"]
        for run in found.runs
        if run.path.resolve() not in inside and run.description.get("command")
    ]
    return list(dict.fromkeys(_command(words) for words in [*sweeps, *alone]))


def _command(words: Any) -> str:
    words = [str(word) for word in words] if isinstance(words, list) else [str(words)]
    if words and words[0].endswith(".py"):
        words.insert(0, "python")
    return shlex.join(words)


def configuration(content: Content) -> list[list[str]]:
    """Per choice its values of the keys that differ."""
    return [[shown(c.settings, key) for key in content.differing] for c in content.choices]
