"""Asking an exported model: what it needs, and what it says when that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sft.errors import ConfigError
from sft.generate import answer, main


def test_what_is_no_exported_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "Hello?"]) == 2
    assert capsys.readouterr().err == (
        f"stowage: {tmp_path}: is no exported model; python -m sft.export RUN {tmp_path} writes "
        "one\n"
    )
    (tmp_path / "config.json").touch()
    with pytest.raises(ConfigError, match="holds no tokenizer, so there is no way to ask it in"):
        answer(tmp_path, "Hello?")
    with pytest.raises(ConfigError, match=r"^--max-new-tokens=0: must be at least 1"):
        answer(tmp_path, "Hello?", max_new_tokens=0)
