"""From directories to files. Only wiring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sft.errors import ConfigError
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
        _write(output / "report.json", to_json(content, output))
        _write(output / "report.md", to_markdown(content, output, plots))
        _write(output / "report.html", to_html(content, output))
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written ({error.strerror})") from error
    return output / "report.html"


def _write(path: Path, text: str) -> None:
    """Whole or not at all: whoever has the old one open keeps it."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
