"""Lengths from files and from conversations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.errors import DataError
from sft.errors import ConfigError
from sft.preview.cli import choices_of
from sft.preview.lengths import of_conversations, of_file


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (np.array([1.5, 2.0]), "must be a .npy file of integers"),
        (np.array([[1, 2]]), "must be a .npy file of integers"),
        (np.array([], dtype=int), "holds no lengths"),
        (np.array([3, 0, 5]), "must be 1 or more, and number 2 is 0"),
        (b"no numbers", "must be a .npy file of integers"),
    ],
)
def test_lengths_that_are_none(tmp_path: Path, content: Any, told: str) -> None:
    (choice,) = choices_of([])
    path = tmp_path / "lengths.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(ConfigError, match=told):
        of_file(path, choice.config)


def test_lengths_as_text_and_what_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("5\n300\n7\n", encoding="utf-8")
    taken = {}
    for overlong in ("truncate", "drop", "error"):
        (choice,) = choices_of(["packing.capacity=128", f"data.overlong={overlong}"])
        if overlong == "error":
            with pytest.raises(DataError, match=r"lengths\.txt:2: this conversation has 300"):
                of_file(path, choice.config)
        else:
            taken[overlong] = of_file(path, choice.config)
    assert taken["truncate"].tokens.tolist() == [5, 128, 7]
    assert taken["truncate"].accounting.truncated_tokens == 172
    assert taken["drop"].tokens.tolist() == [5, 0, 7]
    assert taken["drop"].accounting.describe().startswith("3 read: 2 kept, 1 dropped")
    assert taken["drop"].overlong_share == taken["truncate"].overlong_share == 1 / 3


def test_processes_tokenise_the_same(write_chats: Callable[..., Path]) -> None:
    path = write_chats([i % 50 + 1 for i in range(2500)], extra=["{broken"])
    words = ("data=jsonl", f"data.path={path}", "data.val_fraction=0")
    (alone,) = choices_of([*words, "data.num_workers=0"])
    (several,) = choices_of([*words, "data.num_workers=2"])
    one = of_conversations(alone.config, alone.derived)
    two = of_conversations(several.config, several.derived)
    assert one.tokens.tolist() == two.tokens.tolist()
    assert one.tokens[-1] == 0 and one.kept.size == 2500
    assert one.accounting == two.accounting
