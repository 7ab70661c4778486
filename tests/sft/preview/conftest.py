"""What the tests of the preview share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sft.preview.choice import Shared, preview_choice
from sft.preview.cli import choices_of
from sft.preview.lengths import of_conversations, of_file


def previewed(*overrides: str, lengths: Path | None = None, ranks: int = 2) -> dict[str, Any]:
    """The numbers of the one choice there is."""
    (choice,) = choices_of(overrides)
    source = (
        of_conversations(choice.config, choice.derived)
        if lengths is None
        else of_file(lengths, choice.config)
    )
    shared = Shared(lengths=source)
    return preview_choice(choice, shared, ranks=ranks, seconds=math.inf).content


@pytest.fixture
def write_lengths(tmp_path: Path) -> Callable[..., Path]:
    def write(lengths: Sequence[int] | np.ndarray) -> Path:
        path = tmp_path / "lengths.npy"
        np.save(path, np.asarray(lengths))
        return path

    return write
