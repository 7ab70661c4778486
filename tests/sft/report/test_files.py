"""What is written: text that stays text, links, pictures; the command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sft.errors import ConfigError
from sft.report import write_report
from sft.report.__main__ import main
from tests.sft.report.helpers import pair, report, rows
from tests.sft.report.synthetic import Synthetic, compare_sweep, write_run


def test_names_are_text_and_numbers_finite_everywhere(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>|`"
    pair(tmp_path, second={"overrides": {"packing.pad_multiple": evil}})
    again = Synthetic(overrides={"packing.pad_multiple": "other"})
    write_run(tmp_path / "<script>alert(2)<" / "x", again)
    write_run(tmp_path / "<b>cut", Synthetic(finished=False))
    summary = tmp_path / "packed-1" / "summary.json"
    summary.write_text(summary.read_text().replace('"mfu": null', '"mfu": NaN'))
    assert "NaN" in summary.read_text()
    content = report(tmp_path, write=True)
    assert any(evil in choice for choice in rows(content))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page and "<b>cut" not in page
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "<script>" not in text and "\\|" in text


def test_the_markdown_says_what_the_page_says(tmp_path: Path) -> None:
    content = report(compare_sweep(tmp_path), write=True)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.index(content["answer"]["speed"].split(":")[0]) < text.index("## Is it fair?")
    assert content["answer"]["speed"] in page and content["answer"]["learning"] in page
    for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert len(re.findall(r"!\[", text)) == 6
    for choice in rows(content):
        assert text.count(f"| {choice}".replace("_", "\\_")) >= 3
    widths = [line.replace("\\|", "").count("|") for line in text.splitlines() if line[:1] == "|"]
    assert len(set(widths)) <= 6 and min(widths) > 3


def test_links_are_relative_to_the_report(tmp_path: Path) -> None:
    pair(tmp_path / "runs", seeds=1)
    write_run(tmp_path / "runs" / "a b=1,c", Synthetic(finished=False))
    page = write_report([tmp_path / "runs"], tmp_path / "elsewhere").read_text(encoding="utf-8")
    assert 'href="../runs/none-1"' in page
    assert 'href="../runs/a%20b%3D1%2Cc"' in page
    assert str(tmp_path) not in re.sub(r"<script>.*?</script>", "", page, flags=re.S)


def test_the_page_asks_the_network_for_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "only", Synthetic())
    page = write_report([tmp_path], tmp_path).read_text(encoding="utf-8")
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.search(r"(src|href)=[\"'](https?:)?//|@import|url\(", own)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "no run below it" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "is no directory" in capsys.readouterr().err
    pair(tmp_path / "runs", seeds=1)
    assert main([str(tmp_path / "runs"), "--output", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "report.html")
    assert main([str(tmp_path / "runs")]) == 0
    assert (tmp_path / "runs" / "report.md").exists()


def test_an_output_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    pair(tmp_path / "runs", seeds=1)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file: cannot be written"):
        write_report([tmp_path / "runs"], tmp_path / "file")


def test_importing_it_brings_neither_torch_nor_plots() -> None:
    code = (
        "import sys, sft.report, sft.report.__main__; "
        "print([m for m in ('torch', 'matplotlib', 'plotly', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
