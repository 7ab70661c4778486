"""How long the trained samples were, and how many of them shared a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from sft.report.choices import Choice


def lengths(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """Histograms of lengths, those with one set of bins added up.

    All choices train on the same samples, so one histogram is the rule.
    """
    added: dict[tuple[float, ...], dict[str, Any]] = {}
    for choice in choices:
        for run in choice.runs:
            histogram = (run.summary or {}).get("length_histogram") or {}
            edges, counts = histogram.get("bin_edges"), histogram.get("counts")
            if not edges or not counts or len(edges) != len(counts) + 1:
                continue
            entry = added.setdefault(
                tuple(edges), {"bin_edges": edges, "counts": [0] * len(counts), "choices": []}
            )
            entry["counts"] = [a + b for a, b in zip(entry["counts"], counts, strict=True)]
            if choice.label not in entry["choices"]:
                entry["choices"].append(choice.label)
    for entry in added.values():
        total = sum(entry["counts"]) or 1
        entry["shares"] = [n / total for n in entry["counts"]]
    return list(added.values())


def segments(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """Samples per microbatch of each choice: the mean, and the middle 80 % where it is known."""
    found = []
    for index, choice in enumerate(choices):
        samples = microbatches = 0
        counts: Counter[int] = Counter()
        for run in choice.runs:
            summary = run.summary or {}
            samples += summary.get("samples") or 0
            microbatches += summary.get("microbatches") or 0
            histogram = (summary.get("segments_histogram") or {}).get("counts") or {}
            counts.update({int(k): int(v) for k, v in histogram.items()})
        if not microbatches:
            continue
        entry: dict[str, Any] = {"choice": choice.label, "index": index}
        entry |= {"mean": samples / microbatches, "low": None, "high": None}
        if counts:
            low, high = _quantiles(counts, (0.1, 0.9))
            entry |= {"low": low, "high": high}
        entry["counts"] = {str(k): counts[k] for k in sorted(counts)}
        found.append(entry)
    return found


def _quantiles(counts: Counter[int], at: Sequence[float]) -> list[int]:
    values = sorted(counts)
    passed = np.cumsum([counts[v] for v in values])
    return [values[int(np.searchsorted(passed, q * passed[-1]))] for q in at]
