"""From directories to files. Only wiring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sft.errors import ConfigError
from sft.files import write_text
from sft.report.collect import collect
from sft.report.content import build
from sft.report.machine import to_json
from sft.report.markdown import to_markdown
from sft.report.page import to_html
from sft.report.plots import draw


def write_report(directories: Sequence[Path], output: Path) -> Path:
    """See :func:`sft.report.write_report`."""
    content = build(collect(directories))
    try:
        output.mkdir(parents=True, exist_ok=True)
        plots = draw(content, output)
        write_text(output / "report.json", to_json(content, output))
        write_text(output / "report.md", to_markdown(content, output, plots))
        write_text(output / "report.html", to_html(content, output))
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written ({error.strerror})") from error
    return output / "report.html"
