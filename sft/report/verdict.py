"""The answer, in two sentences: which choice is fastest, and whether it learns the same."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sft.report.choices import Choice
from sft.report.fairness import Finding
from sft.report.measures import Levels
from sft.report.statistics import Comparison, Difference, Spread


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What to do.

    Attributes:
        speed: the first sentence.
        learning: the second.
        fastest: the choice with the highest mean speed; None where none was measured.
        equal: those that are as fast within noise.
        same_loss: whether validation losses agree; None where that is not known.
    """

    speed: str
    learning: str
    fastest: str | None
    equal: list[str]
    same_loss: bool | None


def decide(
    choices: Sequence[Choice],
    speeds: Comparison,
    losses: Comparison,
    common: Levels,
    baseline: str | None,
    findings: Sequence[Finding],
) -> Verdict:
    """Say what the comparisons say, and no more.

    Args:
        choices: all, also those without a finished run.
        speeds: real tokens per second, as ratios.
        losses: validation losses at equal real tokens.
        common: where the losses are compared.
        baseline: the choice where nobody packs that others are put beside.
        findings: what makes it unfair.
    """
    ranked = speeds.ranked()
    unfair = list(dict.fromkeys(f.what.partition(" (")[0] for f in findings if f.unfair))
    sentence, equal = _speed(choices, speeds, ranked, baseline)
    if unfair:
        sentence = f"This is not a fair comparison ({_and(unfair)}); as measured, {sentence}"
    else:
        # A choice keeps its name as it is typed, also at the start of a sentence.
        sentence = re.sub(r"^no ", "No ", sentence)
    learning, same = _learning(choices, losses, common)
    return Verdict(
        speed=sentence,
        learning=learning,
        fastest=ranked[0] if ranked else None,
        equal=equal,
        same_loss=same,
    )


def _speed(
    choices: Sequence[Choice], speeds: Comparison, ranked: Sequence[str], baseline: str | None
) -> tuple[str, list[str]]:
    finished = [c for c in choices if c.runs]
    if not finished:
        return "no run finished, so there is nothing to compare.", []
    if not ranked:
        return "no speed was measured: no run has a timed step.", []
    best = ranked[0]
    rate = _rate(speeds, best)
    if len(ranked) == 1:
        return f"{best} ran at {rate}; there is nothing to put it beside.", []
    others = {c: speeds.difference(best, c) for c in ranked[1:]}
    equal = [c for c, d in others.items() if d and d.low is not None and not d.real]
    open_ = [c for c, d in others.items() if d is None or d.low is None]
    beside = _beside(best, baseline, speeds)
    if len(open_) == len(others):
        alone = all(d is None for d in others.values())
        why = "no seed is common to it and another" if alone else "one run each: no spread is known"
        return f"{best} had the highest speed, {rate}{beside}; {why}, so none is called better.", []
    rest = f"; too few common seeds to tell of {_and(open_)}" if open_ else ""
    if len(equal) == len(others):
        last = others[ranked[-1]]
        return (
            f"no difference in speed was found between {_count(len(ranked))} choices: {best}, at "
            f"{rate}, is {_percent(last)} faster than {ranked[-1]}, within noise."
        ), equal
    slower = len(others) - len(equal) - len(open_)
    if slower and len(equal) > 2 and 2 * len(equal) > len(others):
        return _mostly_equal(best, equal, others, speeds, f"{beside}{rest}"), equal
    if not equal:
        ahead = "" if open_ else ", and ahead of every other choice"
        return f"{best} is fastest: {rate}{beside}{ahead}{rest}.", equal
    return (
        f"{_and([best, *equal])} are fastest and equal within noise: {best} ran at "
        f"{rate}{beside}{rest}."
    ), equal


def _mostly_equal(
    best: str,
    equal: Sequence[str],
    others: Mapping[str, Difference | None],
    speeds: Comparison,
    tail: str,
) -> str:
    """Where most cannot be told apart, the news is which are slower."""
    slower = {c: d for c, d in others.items() if d and d.real}
    told = [f"{best} is {_percent(d)} faster than {c}" for c, d in list(slower.items())[-2:]]
    verb = "is" if len(slower) == 1 else "are"
    return (
        f"{len(equal) + 1} of {len(others) + 1} choices are equal in speed within noise, among "
        f"them {best} at {_rate(speeds, best)}{tail}; {_and(list(slower))} {verb} slower: "
        f"{_and(told)}."
    )


def _beside(best: str, baseline: str | None, speeds: Comparison) -> str:
    if baseline is None or baseline == best or baseline not in speeds.values:
        return ""
    difference = speeds.difference(best, baseline)
    if difference is None:
        return ""
    return f", {_percent(difference)} more than {baseline}"


def _learning(
    choices: Sequence[Choice], losses: Comparison, common: Levels
) -> tuple[str, bool | None]:
    names = losses.choices
    if common.real_tokens is None or not names:
        return "What was learned is not known: no finished run was validated.", None
    at = f"after {common.real_tokens:,} real tokens each"
    if len(names) == 1:
        spread = Spread.of(list(losses.values[names[0]].values()))
        assert spread is not None
        return f"Its validation loss {at} is {plus_minus(spread, 4)}.", None
    pairs = [(a, b, d) for a in names for b in names if a < b and (d := losses.difference(a, b))]
    if not pairs:
        return "Validation losses cannot be compared: no two choices share a seed.", None
    a, b, largest = max(pairs, key=lambda pair: abs(pair[2].value))
    if all(d.low is None for _, _, d in pairs):
        return (
            f"Validation losses {at} are up to {abs(largest.value):.4f} apart; one run each: no "
            "spread is known."
        ), None
    within = losses.within_sd()
    over = f"; over seeds the standard deviation is {within:.4f}" if within is not None else ""
    differ = [p for p in pairs if p[2].real and abs(p[2].value) > (within or 0.0)]
    if differ:
        a, b, largest = max(differ, key=lambda pair: abs(pair[2].value))
        if largest.value > 0:
            a, b = b, a
        return (
            f"What is learned differs: {at}, {a} has a validation loss "
            f"{abs(largest.value):.4f} ({_interval(largest)}) below {b}{over}."
        ), False
    return (
        f"What is learned does not differ by more than noise: validation losses {at} are at most "
        f"{abs(largest.value):.4f} apart ({_interval(largest)}{over})."
    ), True


def _interval(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return "no spread is known"
    ends = sorted((difference.low, difference.high))
    if difference.value < 0:
        ends = sorted((-difference.low, -difference.high))
    return f"95 % interval {_signed(ends[0])} to {_signed(ends[1])}"


def _signed(value: float) -> str:
    return f"{value:.4f}".replace("-", "−")  # noqa: RUF001 - the sign, in print


def _percent(difference: Difference | None) -> str:
    if difference is None:
        return ""
    text = f"{math.expm1(difference.value):.1%}".replace("%", " %")
    if difference.low is None or difference.high is None:
        return text
    low, high = (_bounded(100 * math.expm1(x)) for x in (difference.low, difference.high))
    ends = f"{low} to {high}".replace("-", "−")  # noqa: RUF001
    return f"{text} (95 % interval {ends})"


def _bounded(percent: float) -> str:
    """What is beyond ten times is no longer a measurement."""
    return f"{percent:.1f}" if percent < 1000 else "over 1,000"


def _rate(speeds: Comparison, choice: str) -> str:
    spread = Spread.of([math.exp(v) for v in speeds.values[choice].values()])
    assert spread is not None
    return f"{plus_minus(spread, 0)} real tokens per second"


def plus_minus(spread: Spread, digits: int) -> str:
    """A mean with its standard deviation, where there is one."""
    text = f"{spread.mean:,.{digits}f}"
    return text if spread.sd is None else f"{text} ± {spread.sd:,.{digits}f}"


def _count(number: int) -> str:
    return "the two" if number == 2 else f"the {number}"


def _and(words: Sequence[str], most: int = 5) -> str:
    """A list in prose; a long one is cut, since the table has it all."""
    if len(words) > most:
        return f"{', '.join(words[: most - 1])} and {len(words) - most + 1} more"
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
