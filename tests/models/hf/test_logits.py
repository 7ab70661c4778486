"""Every family computes in Megatron-Core what it does in transformers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sft.parallel import parallel_session
from tests.models.hf import tiny
from tests.models.hf.ours import loaded, logits_alone, logits_packed

ROOT = Path(__file__).resolve().parents[3]


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert theirs.std() > 0.5  # or agreement would mean little
    return (ours[..., : theirs.shape[-1]] - theirs).abs().max().item()


@pytest.mark.parametrize("name", tiny.MODELS)
def test_logits(name: str, tmp_path: Path) -> None:
    model, sequences = tiny.make(name, tmp_path), tiny.sequences()
    theirs = [tiny.logits_of(model, tokens) for tokens in sequences]
    with parallel_session(0, None):
        gpt, _ = loaded(tmp_path)
        for tokens, expected in zip(sequences, theirs, strict=True):
            assert difference(logits_alone(gpt, tokens), expected) < 1e-5
        for row, expected in zip(logits_packed(gpt, sequences), theirs, strict=True):
            assert difference(row, expected) < 1e-5


def test_a_scaling_matters(tmp_path: Path) -> None:
    # What the test above would not see if both sides forgot it.
    plain, scaled = tmp_path / "plain", tmp_path / "scaled"
    for rope, path in ((None, plain), ({"rope_type": "linear", "factor": 3.0}, scaled)):
        tiny.make("llama", path, rope_parameters=rope)
    tokens = tiny.sequences()[0]
    with parallel_session(0, None):
        a, b = (logits_alone(loaded(path)[0], tokens) for path in (plain, scaled))
    assert difference(a, b) > 0.1


def test_a_padded_vocabulary_has_rows_of_zeros(tmp_path: Path) -> None:
    model, tokens = tiny.make("llama", tmp_path), tiny.sequences()[1]
    with parallel_session(0, None):
        gpt, shape = loaded(tmp_path, vocab_multiple=64)
        ours = logits_alone(gpt, tokens)
    assert shape.padded_vocab_size(tiny.VOCAB) == ours.shape[-1] == 128
    assert difference(ours, tiny.logits_of(model, tokens)) < 1e-5
    assert (gpt.output_layer.weight[tiny.VOCAB :] == 0).all()
    assert (gpt.embedding.word_embeddings.weight[tiny.VOCAB :] == 0).all()


@pytest.mark.slow
def test_two_tensor_parallel_ranks(tmp_path: Path) -> None:
    expected: dict[str, Any] = {}
    for name in tiny.SPLITTABLE:
        model = tiny.make(name, tmp_path / name)
        expected[name] = [tiny.logits_of(model, tokens) for tokens in tiny.sequences()]
    torch.save(expected, tmp_path / "expected.pt")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.models.hf.two_ranks", str(tmp_path)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank)], cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    assert (tmp_path / "compared").read_text(encoding="utf-8").split() == tiny.SPLITTABLE
