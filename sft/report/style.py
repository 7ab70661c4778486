"""How a choice looks, in the page and in the pictures: colour by packer, line by who packs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sft.report.choices import Choice

# Told apart also by those who do not see all colours (after Okabe and Ito; the last two after Tol),
# on white and, lighter, on a dark ground.
LIGHT = (
    "#0072b2", "#d55e00", "#009e73", "#c0569b", "#b97a00", "#3aa0d8", "#882255", "#7d7d24",
)  # fmt: skip
DARK = (
    "#4ba3e3", "#f0803c", "#2cc295", "#e39bc4", "#f0b43c", "#a5d8f7", "#d9669b", "#c9c95a",
)  # fmt: skip
# Nobody packs: neither colour is a packer's.
NEUTRAL_LIGHT = ("#444444", "#8a8a8a")
NEUTRAL_DARK = ("#d8d8d8", "#8f8f8f")


@dataclass(frozen=True, kw_only=True)
class Look:
    """One choice's line.

    Attributes:
        light: colour on white.
        dark: colour on a dark ground.
        dash: ``solid``, ``dash``, ``dot`` or ``dashdot``.
        symbol: ``circle``, ``diamond``, ``square`` or ``triangle-up``.
    """

    light: str
    dark: str
    dash: str
    symbol: str


_LINES = (
    ("solid", "circle"), ("dash", "diamond"), ("dot", "square"), ("dashdot", "triangle-up"),
)  # fmt: skip
_OF_MODE = {"trainer": 0, "loader": 1, "none": 2}


def looks(choices: Sequence[Choice]) -> list[Look]:
    """One look per choice; they repeat only where there are more choices than looks."""
    packers = sorted({c.packer for c in choices if c.packer})
    pairs = [(c.packer, c.mode) for c in choices if c.mode != "none"]
    if len(set(pairs)) < len(pairs) or len(packers) > len(LIGHT):
        return [_look(i, i // len(LIGHT)) for i in range(len(choices))]
    found, nones = [], 0
    for choice in choices:
        if choice.packer is None:
            found.append(_neutral(nones))
            nones += 1
        else:
            found.append(_look(packers.index(choice.packer), _OF_MODE.get(choice.mode, 3)))
    return found


def _look(colour: int, line: int) -> Look:
    dash, symbol = _LINES[line % len(_LINES)]
    colour %= len(LIGHT)
    return Look(light=LIGHT[colour], dark=DARK[colour], dash=dash, symbol=symbol)


def _neutral(number: int) -> Look:
    shade = number % len(NEUTRAL_LIGHT)
    dash, symbol = _LINES[2 + number // len(NEUTRAL_LIGHT) % 2]
    return Look(light=NEUTRAL_LIGHT[shade], dark=NEUTRAL_DARK[shade], dash=dash, symbol=symbol)
