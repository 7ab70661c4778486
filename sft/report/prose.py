"""Sentences that the page and the Markdown share."""

from __future__ import annotations

from sft.report.content import Content
from sft.report.fairness import Finding
from sft.report.machine import provenance


def fairness_line(content: Content) -> str:
    """Whether it is a fair comparison, in one line."""
    unfair = sum(finding.unfair for finding in content.findings)
    finished = sum(bool(choice.runs) for choice in content.choices)
    if finished < 2:
        return "There are no two choices to compare."
    if unfair:
        what = "one thing differs" if unfair == 1 else f"{unfair} things differ"
        return f"Not fair: {what} besides who packs."
    return (
        "Fair: the choices have the same data, tokenizer, seeds, model, optimizer, schedule, "
        "steps and machine, and real tokens per optimizer step within 5 %."
    )


def caveats(content: Content) -> list[str]:
    """What the numbers must not be taken for."""
    hardware = [run.description.get("hardware") or {} for run in content.runs if run.finished]
    lines = []
    if hardware and not any(h.get("gpus") for h in hardware):
        lines.append(
            "Measured on a CPU. There a microbatch of one conversation has no padding and wastes "
            "nothing; on a GPU it leaves the card idle, so this ranking does not carry over."
        )
    if content.one_process:
        lines.append(
            "Jobs ran one after another in one process: without a GPU, peak memory is that of the "
            "greediest so far."
        )
    return lines


def told(finding: Finding) -> list[tuple[str, str]]:
    """Each value of a finding with the choices that have it; many are counted, not listed."""
    most = max(len(labels) for _, labels in finding.values)
    others = [labels for _, labels in finding.values if len(labels) == most]
    lines = []
    for value, labels in finding.values:
        who = "; ".join(labels)
        if len(labels) > 3:
            alone = len(labels) == most and len(others) == 1 and len(finding.values) > 1
            who = f"the other {len(labels)} choices" if alone else f"{len(labels)} choices"
        lines.append((value, who))
    return sorted(lines, key=lambda line: line[1].startswith("the other "))


def noise_lines(content: Content) -> list[str]:
    """How noisy the machine was, and how differences were judged."""
    lines = []
    within, beside = content.speeds.within_sd(), content.speeds.residual_sd
    if within is not None:
        text = f"Speeds of one choice vary by {within:.1%} over seeds"
        if beside is not None and beside > 1e-9:
            text += f", by {beside:.1%} within a seed"
        lines.append(text.replace("%", " %") + " (standard deviation).")
    if content.drift is not None:
        change = f"{content.drift.change:+.1%}".replace("%", " %").replace("-", "−")  # noqa: RUF001
        sure = content.drift.p_value < 0.05
        p_value = content.drift.p_value
        known = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"
        lines.append(
            f"Speeds changed by {change} from the first job to the last ({known}): the machine "
            "drifted, or the seeds' data differ. Differences are taken within a seed."
            if sure
            else f"No drift over the sweep is seen ({change} from the first job to the last, "
            f"{known})."
        )
    if content.speeds.residual_sd is not None:
        lines.append(
            "A difference counts where its 95 % interval excludes none: the wider of Tukey's, over "
            "all choices and seeds, and of the paired t interval of the two. Tukey's holds for all "
            "pairs at once, so picking the best after looking is allowed for. With two seeds a "
            "difference must also exceed the range of both."
        )
    return lines


def machine_lines(content: Content) -> list[str]:
    """Versions, hardware, commit: each set once."""
    lines = []
    for told in provenance(content):
        hardware = told["hardware"] or {}
        gpus = ", ".join(hardware.get("gpus") or []) or "no GPU"
        machine = (
            f"{hardware.get('cpu', 'unknown CPU')}, {hardware.get('cpu_cores')} cores, "
            f"{hardware.get('torch_threads')} threads, {gpus}; kernels {told['kernels']}"
        )
        versions = ", ".join(f"{k} {v}" for k, v in (told["versions"] or {}).items())
        runs = "1 run" if told["runs"] == 1 else f"{told['runs']} runs"
        lines.append(
            f"{runs}: {machine}; {versions}; commit {told['git_commit'] or 'unknown'}; tokenizer "
            f"{told['tokenizer'] or 'unknown'}"
        )
    return lines
