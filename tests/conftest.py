"""What tests share: a small model on one process, real conversations, and runs in-process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# As many threads as cores, over all test processes.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")

from data.chat import ConversationEncoder, Overlong
from data.formats import Parser
from data.sample import Sample
from data.sources.chitchat import ChitchatSource
from data.tokenizers import load_tokenizer

CONF_DIR = str(Path(__file__).resolve().parent.parent / "conf")


# Smaller than ``model=tiny``, and nothing that takes time.
SMALL_MODEL = [
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.ffn_hidden_size=64",
    "model.num_attention_heads=2",
    "model.num_query_groups=1",
    "train.eval_every=0",
    "train.save_every=null",
    "data.num_workers=0",
]


@pytest.fixture(scope="session")
def chitchat_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted conversations, made once for all tests."""
    path = tmp_path_factory.mktemp("datasets")
    ChitchatSource(cache_dir=str(path)).prepare()
    return path


@pytest.fixture(scope="session")
def real_samples(chitchat_dir: Path) -> list[Sample]:
    """64 real conversations of at most 512 tokens, as samples."""
    records = ChitchatSource(cache_dir=str(chitchat_dir)).prepare().train
    encode = ConversationEncoder(Parser(), load_tokenizer("bytes"), 512, Overlong.TRUNCATE)
    outcomes = (encode(records.read(i), records.source_id(i)) for i in range(len(records)))
    samples = [outcome for outcome in outcomes if isinstance(outcome, Sample)][:64]
    assert len(samples) == 64
    return samples


def make_sample(length: int, *, seed: int = 0, targets: float = 0.4, name: str = "") -> Sample:
    """A sample of random tokens; at least its last token is a target if it has two."""
    rng = np.random.default_rng((seed, length))
    mask = rng.random(length) < targets
    mask[-1] = True
    mask[0] = False
    return Sample(
        tokens=rng.integers(0, 256, length), targets=mask, source_id=name or f"s{length}.{seed}"
    )


@pytest.fixture
def write_chats(tmp_path: Path) -> Callable[..., Path]:
    """Write a JSONL file of conversations; each answer is as long as asked for."""

    def write(
        answers: list[int], name: str = "chats.jsonl", extra: list[str] | None = None
    ) -> Path:
        path = tmp_path / name
        lines = []
        for i, length in enumerate(answers):
            messages = [
                {"role": "user", "content": f"question {i}"},
                {"role": "assistant", "content": chr(97 + i % 26) * length},
            ]
            lines.append(json.dumps({"messages": messages}))
        path.write_text("\n".join([*lines, *(extra or [])]) + "\n", encoding="utf-8")
        return path

    return write


@pytest.fixture
def run_app(tmp_path: Path, chitchat_dir: Path) -> Iterator[Callable[..., Any]]:
    """Compose, check and run in this process, as ``train.py`` does; returns the result.

    The model is smaller than ``tiny`` and everything stays under the test's directory.
    """
    from hydra import compose, initialize_config_dir

    from sft.checks import check
    from sft.config import resolve
    from sft.run import run

    count = 0

    def go(*overrides: str) -> Any:
        nonlocal count
        count += 1
        if not any(o.startswith("data=") for o in overrides):
            overrides = (f"data.cache_dir={chitchat_dir}", *overrides)
        with initialize_config_dir(CONF_DIR, version_base="1.3"):
            tree = compose(
                "config", [*SMALL_MODEL, f"run_dir={tmp_path / f'run{count}'}", *overrides]
            )
        config = resolve(tree)
        return run(config, check(config))

    yield go


def read_metrics(run_dir: Path, event: str = "train") -> list[dict[str, Any]]:
    """The records of one kind from ``metrics.jsonl``."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]
