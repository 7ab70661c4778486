"""All choices, one after the other, and what is left of them: a table, a picture, a JSON file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sft.errors import ConfigError
from sft.preview.choice import Choice, Shared, preview_choice
from sft.preview.lengths import Lengths, of_conversations, of_file
from sft.preview.plot import draw
from sft.preview.show import show

_LENGTH_BINS = 40


def preview(
    choices: Sequence[Choice],
    *,
    lengths_file: Path | None = None,
    ranks: int = 8,
    seconds: float | None = None,
    output: Path,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Preview the choices, print the table, and write ``preview.json`` and ``preview.png``.

    Args:
        choices: at least one.
        lengths_file: token counts to take instead of the conversations.
        ranks: data-parallel ranks to measure the balance for.
        seconds: to pack in, all choices together; None: as long as it takes.
        output: a directory; made if it is not there.
        command: that asked for this, for the record.

    Returns:
        The content of ``preview.json``: ``data`` holds each set of lengths once, ``choices`` the
        numbers of each choice and, as ``data``, which set it is about.

    Raises:
        ConfigError: the data is not there, or ``output`` cannot be written.
        DataError: the data cannot be used.
    """
    if not choices:
        raise ConfigError("there is nothing to preview: no combination of settings is left")
    _make(output)
    sets: list[tuple[Choice, Shared]] = []
    outcomes: list[dict[str, Any]] = []
    left = float("inf") if seconds is None else seconds
    for done, choice in enumerate(choices):
        number = _set_number(choice, sets, lengths_file)
        # What quick packers leave of their share is for those that come after.
        share = left / (len(choices) - done)
        outcome = preview_choice(choice, sets[number][1], ranks=ranks, seconds=share)
        left = max(0.0, left - outcome.rows.seconds)
        outcomes.append({**outcome.content, "data": number})
    content = {
        "command": list(command),
        "data": [_describe(choice, shared.lengths) for choice, shared in sets],
        "choices": outcomes,
    }
    text = json.dumps(content, indent=2, allow_nan=False)
    (output / "preview.json").write_text(text + "\n", encoding="utf-8")
    draw(content, output / "preview.png")
    show(content, output)
    return content


def _make(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"preview_dir={output}: cannot be written ({error.strerror}); choose another directory"
        ) from error


def _set_number(
    choice: Choice, sets: list[tuple[Choice, Shared]], lengths_file: Path | None
) -> int:
    """Which set of lengths a choice is about; read if it is a new one."""
    for number, (other, _) in enumerate(sets):
        same_data = _data_key(choice) == _data_key(other)
        if same_data and choice.config.packing.capacity == other.config.packing.capacity:
            return number
    if lengths_file is None:
        lengths = of_conversations(choice.config, choice.derived)
    else:
        lengths = of_file(lengths_file, choice.config)
    sets.append((choice, Shared(lengths=lengths)))
    return len(sets) - 1


def _data_key(choice: Choice) -> Any:
    # Shuffling and workers change no length.
    return dataclasses.replace(choice.config.data, shuffle=True, num_workers=0)


def _describe(choice: Choice, lengths: Lengths) -> dict[str, Any]:
    kept, capacity = lengths.kept, choice.config.packing.capacity
    counts, edges = np.histogram(kept, np.linspace(0, capacity, _LENGTH_BINS + 1))
    percentiles = np.percentile(kept, [5, 50, 95, 99])
    return {
        "source": lengths.source,
        "capacity": capacity,
        "accounting": lengths.accounting.to_json(),
        "accounting_text": lengths.accounting.describe(),
        "overlong_share": lengths.overlong_share,
        "loss_token_share": lengths.loss_share,
        "lengths": {
            "min": int(kept.min()),
            "mean": float(kept.mean()),
            **{f"p{p}": float(v) for p, v in zip((5, 50, 95, 99), percentiles, strict=True)},
            "max": int(kept.max()),
        },
        "length_histogram": {"bin_edges": edges.tolist(), "counts": counts.tolist()},
    }
