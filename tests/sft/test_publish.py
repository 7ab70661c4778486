"""What is written of a model besides its weights; test_export has what transformers makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.tokenizers import ByteTokenizer
from models.hf.shape import shape_of
from sft.errors import ConfigError
from sft.publish import write_description
from tests.models.hf.test_shape import SMOLLM2, write


def test_a_generation_configuration_that_is_no_json(tmp_path: Path) -> None:
    where = write(tmp_path, SMOLLM2)
    broken = tmp_path / "generation_config.json"
    broken.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:  # and no ValueError, which is of the shape's
        write_description(tmp_path / "hf", shape_of(where), ByteTokenizer())
    assert str(caught.value).startswith(f"model.init_from={where}: {broken} is not JSON (")
    assert str(caught.value).endswith("; mend it, or fetch it again")
