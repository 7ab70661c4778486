"""What the pages show of the packers is what they do."""

import ast
import re
from pathlib import Path

import pytest

from data.packers import load_packer, packer_names
from data.packers.base import Packer

ROOT = Path(__file__).parents[1]


def examples():
    """Lines of Python with the value that a comment says they have, and what comes before them."""
    for page in ("README.md", "docs/packers.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for block in re.findall(r"```python\n(from data\.packers import.*?)```", text, re.DOTALL):
            lines = block.splitlines()
            for number, line in enumerate(lines):
                code, _, value = line.partition("  # ")
                if value:
                    yield pytest.param("\n".join(lines[:number]), code, value, id=f"{page}: {code}")


@pytest.mark.parametrize(("before", "code", "value"), list(examples()))
def test_examples_give_what_the_comment_says(before, code, value):
    names = {}
    exec(before, names)
    assert eval(code, names) == ast.literal_eval(value.strip())


def test_there_are_examples():
    assert len(list(examples())) >= 3


def test_the_page_on_packers_speaks_of_every_packer():
    page = (ROOT / "docs/packers.md").read_text(encoding="utf-8")
    for name in packer_names():
        assert page.count(f"`{name}`") >= 2, name


def test_the_packer_shown_in_contributing_keeps_the_contract():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(# data/packers/nfi.py.*?)```", page, re.DOTALL)
    names = {}
    exec(block, names)
    packer = names["NextFitIncreasing"](max_samples_per_bin=2)
    assert isinstance(packer, Packer)
    assert packer.pack([5, 2, 3], 6) == [[1, 2], [0]]
    assert packer.pack([1, 1, 1], 6, apart=[0, 0, -1]) == [[0], [1, 2]]
    assert load_packer("ffd").pack([5, 2, 3], 6) == [[0], [2, 1]]
