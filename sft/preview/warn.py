"""Where a setting defeats packing: what is wrong, how much it costs, what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from data.packing.settings import PackingMode
from sft.preview.lengths import Lengths
from sft.preview.rows import Rows

if TYPE_CHECKING:
    from sft.preview.choice import Choice

_MOST_ALONE = 0.5  # of the rows, with one sample
_MOST_OF_THE_PACKER = 0.25  # rows over the bound, before it is the packer's fault
_MOST_EXTRA_ROWS = 0.01  # over those that a wider window, or no wish for more bins, would need
_MOST_OVERLONG = 0.05  # of the conversations
_ENOUGH_GROUPS = 64  # for a per cent to mean something, where not all were packed


def warnings(content: Mapping[str, Any], rows: Rows, lengths: Lengths, choice: Choice) -> list[str]:
    """What to know before training like this, a sentence each."""
    found = [*_of_data(lengths, choice)]
    if choice.config.packing.mode is not PackingMode.NONE:
        found += _of_rows(content, rows, lengths, choice)
    return found


def _of_data(lengths: Lengths, choice: Choice) -> Iterator[str]:
    if lengths.overlong_share > _MOST_OVERLONG:
        config = choice.config
        fate = {"drop": "dropped", "truncate": "cut off"}[config.data.overlong.value]
        yield (
            f"{lengths.overlong_share:.0%} of the conversations are over packing.capacity="
            f"{config.packing.capacity} and are {fate}; raise it"
        )
    multiple, median = choice.derived.pad_multiple, float(np.median(lengths.kept))
    if 2 * multiple > median:
        padded = -(-lengths.kept // multiple) * multiple
        yield (
            f"the pad multiple {multiple} is near the median length of {median:,.0f} tokens, and "
            f"padding to it takes {1 - lengths.kept.sum() / padded.sum():.0%} of the room; a "
            "smaller packing.pad_multiple packs more"
        )


def _of_rows(
    content: Mapping[str, Any], rows: Rows, lengths: Lengths, choice: Choice
) -> Iterator[str]:
    packing, packer = choice.config.packing, choice.config.packer
    alone = content["samples_per_row"]["one_sample_share"]
    fewest, whole = content["fewest_rows"], content["fewest_rows_over_all"]
    if alone > _MOST_ALONE:
        yield f"{alone:.0%} of the rows hold one sample: {_why_alone(content, lengths, choice)}"
    known = not content["estimated"] or rows.groups >= _ENOUGH_GROUPS
    over = packing.mode is PackingMode.LOADER and fewest > whole * (1 + _MOST_EXTRA_ROWS)
    if over and known:
        yield (
            f"windows of {packing.loader_buffer_size:,} samples cost {fewest / whole - 1:.0%} more "
            "rows than all at once, whatever the packer; raise packing.buffer_size"
        )
    if rows.unmet:
        yield (
            f"in {rows.unmet:,} of {rows.groups:,} {_groups(packing.mode)} there are too few "
            "samples for the bins that packer.min_bins or packer.bins_multiple asks for"
        )
    if (without := content["rows_without_constraints"]) is not None:
        extra = content["rows"] / without - 1
        if extra > _MOST_EXTRA_ROWS:
            yield (
                f"packer.min_bins={_null(packer.min_bins)} and packer.bins_multiple="
                f"{_null(packer.bins_multiple)} make {extra:.1%} more rows than needed; larger "
                f"{_groups(packing.mode)} would make that less"
            )


def _why_alone(content: Mapping[str, Any], lengths: Lengths, choice: Choice) -> str:
    if choice.config.packer.max_samples_per_bin == 1:
        return "packer.max_samples_per_bin=1 asks for that; raise it"
    rows, fewest = content["rows"], content["fewest_rows"]
    if rows > fewest * (1 + _MOST_OF_THE_PACKER):
        return (
            f"{choice.packer} makes {rows / fewest - 1:.0%} more of them than are needed here; "
            "choose another packer"
        )
    capacity = choice.config.packing.capacity
    share = float((lengths.kept > capacity / 2).mean())
    return (
        f"there is little to pack. {share:.0%} of the samples are over half of packing.capacity="
        f"{capacity}; raise it"
    )


def _groups(mode: PackingMode) -> str:
    return "windows" if mode is PackingMode.LOADER else "steps"


def _null(value: int | None) -> str:
    return "null" if value is None else str(value)
