"""``summary.json`` and ``samples.json``, and the table on the console."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from data.accounting import Accounting
from data.exchange import Exchange
from sft.progress import Progress
from sft.yardstick import Yardstick, peak_memory_bytes


def summary_json(
    progress: Progress, device: torch.device, yardstick: Yardstick, exchange: Exchange
) -> dict[str, Any]:
    """What a run comes to; the figures that a comparison reads.

    Every process calls this. Counts are over all of them, and ``peak_memory_bytes`` is that of the
    one that held most.

    ``rows`` are those packed, by the loader also ahead of the last step, and ``fewest_rows`` the
    lower bound on them; both null where nobody packs. ``mfu`` is null where the device's peak is
    not known. ``attention_imbalance`` is the mean over the steps.
    """
    speed, histograms = progress.speed, progress.histograms
    rates = speed.timed.rates(speed.timed_seconds)
    validations = [
        {"step": step, "val_loss": result.loss, "val_loss_tokens": result.loss_tokens}
        for step, result in progress.validations
    ]
    return {
        "steps": progress.steps,
        "final_loss": progress.last_loss,
        "final_val_loss": validations[-1]["val_loss"] if validations else None,
        "validations": validations,
        "slot_tokens": speed.total.slot_tokens,
        "real_tokens": speed.total.real_tokens,
        "loss_tokens": speed.total.loss_tokens,
        "samples": speed.total.samples,
        "microbatches": speed.total.microbatches,
        "samples_per_microbatch": speed.total.samples / max(1, speed.total.microbatches),
        "squared_length_sum": speed.total.squared_length_sum,
        "attention_imbalance": histograms.imbalances / max(1, progress.steps),
        "fill": speed.total.fill,
        "rows": progress.rows or None,
        "fewest_rows": progress.fewest_rows or None,
        "timed_steps": speed.timed_steps,
        "timed_seconds": speed.timed_seconds,
        "slot_tokens_per_s": rates.get("slot_tokens_per_s"),
        "real_tokens_per_s": rates.get("real_tokens_per_s"),
        "loss_tokens_per_s": rates.get("loss_tokens_per_s"),
        **yardstick.speed(speed.timed, speed.timed_seconds),
        "peak_flops_per_s": yardstick.peak_flops_per_s,
        "step_time_shares": speed.shares(),
        "peak_memory_bytes": max(exchange.gather(peak_memory_bytes(device))),
        "processes": exchange.size,
        "wall_seconds": yardstick.wall_seconds,
        "length_histogram": {
            "bin_edges": histograms.bin_edges.tolist(),
            "counts": histograms.samples_by_length.tolist(),
        },
        "segments_histogram": {
            "counts": {str(n): c for n, c in sorted(histograms.microbatches_by_samples.items())}
        },
    }


def samples_json(
    notes: Mapping[str, Any], train: Accounting, trained: int, val: Accounting
) -> dict[str, Any]:
    """The accounting of conversations: what was read, kept, dropped, truncated, trained on.

    ``kept`` of the training conversations is ``trained`` plus ``not_trained``: those that the
    loader had already handed over when the last step was done.

    Args:
        notes: from preparing the data.
        train: of the training stream.
        trained: conversations in the steps that were done.
        val: of one validation.
    """
    assert trained <= train.kept
    return {
        "prepared": dict(notes),
        "train": {**train.to_json(), "trained": trained, "not_trained": train.kept - trained},
        "val": val.to_json(),
    }


def summary_rows(
    summary: Mapping[str, Any], accounting: Accounting, run_dir: Path
) -> dict[str, str]:
    """The closing table, by row."""
    rows = {"steps": f"{summary['steps']:,}", "training loss": f"{summary['final_loss']:.4f}"}
    validations = summary["validations"]
    if validations:
        rows["validation loss"] = (
            f"{validations[0]['val_loss']:.4f} -> {validations[-1]['val_loss']:.4f}"
        )
    rows["tokens"] = (
        f"{summary['real_tokens']:,} real, {summary['loss_tokens']:,} with loss, "
        f"{summary['slot_tokens']:,} slots"
    )
    rows["fill"] = f"{summary['fill']:.4f} over {summary['microbatches']:,} microbatches"
    if summary["rows"]:
        rows["rows"] = f"{summary['rows']:,} packed; no packer needs fewer than " + (
            f"{summary['fewest_rows']:,}"
        )
    if summary["real_tokens_per_s"] is not None:
        rows["tokens/s"] = (
            f"{summary['real_tokens_per_s']:,.0f} real, {summary['loss_tokens_per_s']:,.0f} with "
            f"loss, {summary['slot_tokens_per_s']:,.0f} slots, over {summary['timed_steps']} steps"
        )
        rows["model FLOP/s"] = _flops_row(summary)
        shares = summary["step_time_shares"].items()
        rows["step time"] = ", ".join(f"{n.replace('_', ' ')} {s:.1%}" for n, s in shares)
    rows["conversations"] = accounting.describe()
    rows["peak memory"] = f"{summary['peak_memory_bytes'] / 2**30:.2f} GiB"
    rows["wall time"] = f"{summary['wall_seconds']:.0f} s"
    rows["results"] = str(run_dir)
    return rows


def _flops_row(summary: Mapping[str, Any]) -> str:
    text = f"{summary['model_flops_per_s'] / 1e12:.4g} TFLOP/s"
    if summary["mfu"] is None:
        return f"{text}; MFU unknown: no peak is known of this device at this precision"
    return f"{text}, MFU {summary['mfu']:.1%} of {summary['peak_flops_per_s'] / 1e12:,.4g}"
