"""``report.html``: one file with everything in it; it asks the network for nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from sft.report.content import Content
from sft.report.figures import AXES, fill_points, focus, speed_points
from sft.report.machine import link
from sft.report.prose import caveats, fairness_line, machine_lines, noise_lines, told
from sft.report.style import looks
from sft.report.tables import (
    accounting_table,
    configuration_table,
    learning_table,
    packing_table,
    prepared,
    speed_table,
)


def to_html(content: Content, output: Path) -> str:
    """The text of ``report.html``."""
    environment = Environment(
        loader=PackageLoader("sft.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    runs = sum(len(choice.runs) for choice in content.choices)
    return environment.get_template("page.html").render(
        content=content,
        fairness=fairness_line(content),
        fair=not any(f.unfair for f in content.findings),
        comparable=sum(bool(c.runs) for c in content.choices) > 1,
        finished=runs,
        caveats=caveats(content),
        noise=noise_lines(content),
        machines=machine_lines(content),
        prepared=prepared(content),
        speed=speed_table(content),
        packing=packing_table(content),
        learning=learning_table(content),
        accounting=accounting_table(content),
        configuration=configuration_table(content),
        looks=looks(content.choices),
        told=told,
        link=lambda path: link(path, output),
        figures=_in_script(_figures(content)),
        plotly=get_plotlyjs(),
    )


def _figures(content: Content) -> dict[str, Any]:
    """What page.js draws: plain numbers; it knows how they look."""
    return {
        "choices": [
            {"label": choice.label, **asdict(look)}
            for choice, look in zip(content.choices, looks(content.choices), strict=True)
        ],
        "axes": AXES,
        "curves": content.curves,
        "focus": {
            kind: {axis: focus(series) for axis, series in panels.items()}
            for kind, panels in content.curves.items()
        },
        "speed": speed_points(content),
        "fill": fill_points(content),
        "segments": content.segments,
        "lengths": content.lengths,
    }


def _in_script(value: Any) -> str:
    """JSON that ends no script element, whatever names it holds."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
