"""``python -m sft.export RUN OUT``: a trained model as a directory that ``transformers`` loads.

Exit codes: 0 done; 2 it cannot be done as asked.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.lora_settings import LoRASettings
from models.shapes import GPTShape, ModelSource
from sft.cli import log_library_warnings
from sft.config import component, structured
from sft.errors import ConfigError

PRECISIONS = ("float32", "bfloat16")
_ANOTHER = "take another of the run's checkpoints"
_MODEL_FILES = ("config.json", "generation_config.json")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = _parser().parse_args(words)
    try:
        has_tokenizer = export(given.trained, given.out, dtype=given.dtype, adapter=given.adapter)
    except ConfigError as error:
        print(f"stowage: {error}", file=sys.stderr)
        return 2
    if not has_tokenizer:
        print(
            "stowage: without a tokenizer, as transformers has none for data.tokenizer=bytes",
            file=sys.stderr,
        )
    print(given.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sft.export",
        description="Write a trained model as a directory that transformers loads: weights as "
        "safetensors, configuration, generation configuration, and the tokenizer with the chat "
        "template it was trained with. Adapters of LoRA are merged into the weights.",
    )
    parser.add_argument(
        "trained",
        type=Path,
        metavar="RUN",
        help="a run's directory, for its last checkpoint; or one of its checkpoints/step-N",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="a directory that is not there yet")
    parser.add_argument(
        "--dtype",
        choices=PRECISIONS,
        help="what to write weights in; float32, as they were trained, by default",
    )
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="of a LoRA run: write the adapters alone, as peft loads them",
    )
    return parser


def export(trained: Path, out: Path, *, dtype: str | None = None, adapter: bool = False) -> bool:
    """Write the model of a run or a checkpoint.

    Args:
        trained: the directory of either.
        out: must not exist; it is there once it is whole.
        dtype: one of ``PRECISIONS``; None: float32.
        adapter: whether to write LoRA's adapters alone, in PEFT's format.

    Returns:
        Whether a tokenizer is in it.

    Raises:
        ConfigError: there is no checkpoint, or it cannot be written as asked.
    """
    from sft.checkpoint import DESCRIPTION_DIR

    _check_free(out)
    model = _open(trained)
    _check_adapter(model, dtype, adapter)
    partial = out.with_name(f".{out.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        left_out = shutil.ignore_patterns(*(_MODEL_FILES if adapter else ()))
        shutil.copytree(model.checkpoint / DESCRIPTION_DIR, partial, ignore=left_out)
        _write_model(model, partial, dtype or "float32", adapter)
        partial.replace(out)
    except OSError as error:
        raise ConfigError(
            f"{out}: cannot be written ({error.strerror or error}); make room there, or choose "
            "a directory that this user may write to"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return (out / "tokenizer_config.json").is_file()


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """A checkpoint, but for its weights."""

    checkpoint: Path
    shape: GPTShape
    lora: LoRASettings
    vocab_size: int
    config: Mapping[str, Any]


def _open(trained: Path) -> _Trained:
    from sft.checkpoint import DESCRIPTION_DIR, find_checkpoint, read_description

    checkpoint = find_checkpoint(trained)
    description = read_description(checkpoint)
    config = checkpoint / DESCRIPTION_DIR / "config.json"
    try:
        content: Mapping[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{config}: cannot be read ({why}); {_ANOTHER}") from error
    return _Trained(
        checkpoint=checkpoint,
        shape=component(description["config"]["model"], ModelSource, "model"),
        lora=structured(description["config"]["lora"], LoRASettings, "lora"),
        vocab_size=description["tokenizer_vocab_size"],
        config=content,
    )


def _check_free(out: Path) -> None:
    try:
        exists = out.exists()
    except OSError as error:  # no permission on the way there, a name that is too long
        raise ConfigError(
            f"{out}: cannot be written ({error.strerror or error}); choose another directory"
        ) from error
    if exists:
        raise ConfigError(f"{out}: exists; choose another directory or remove it")


def _check_adapter(model: _Trained, dtype: str | None, adapter: bool) -> None:
    if not adapter:
        return
    if model.lora.rank is None:
        raise ConfigError(f"--adapter: {model.checkpoint} was trained without LoRA; leave it out")
    if model.shape.init_from is None:
        raise ConfigError(
            f"--adapter: {model.checkpoint} has adapters to weights that were drawn at random, and "
            "nobody has those; leave it out to merge the two"
        )
    if dtype is not None:
        raise ConfigError(f"--dtype={dtype}: adapters are written in float32; leave it out")


def _write_model(model: _Trained, directory: Path, dtype: str, adapter: bool) -> None:
    """Build the model again, fill it, and write its weights."""
    import torch

    from models.gpt import KernelPath, build_gpt
    from models.lora import attach, merge
    from sft.parallel import parallel_session

    with parallel_session(0, None):
        gpt = build_gpt(
            model.shape, tokenizer_vocab_size=model.vocab_size, kernels=KernelPath.TORCH
        )
        if model.lora.rank is not None:
            attach([gpt], model.lora)
        _fill(gpt, model.checkpoint)
        if adapter:
            from models.hf.adapter import save_adapter

            save_adapter(gpt, model.shape, model.lora, directory)
            return
        if model.lora.rank is not None:
            merge(gpt)
        _write_merged(gpt, model, directory, getattr(torch, dtype))


def _fill(gpt: Any, checkpoint: Path) -> None:
    from sft.checkpoint import load_weights
    from sft.sharded import DamagedCheckpoint

    try:
        load_weights(checkpoint, [gpt])
    except DamagedCheckpoint as error:
        raise ConfigError(
            f"{checkpoint}: its weights are missing or damaged ({error.reason}); {_ANOTHER}"
        ) from error


def _write_merged(gpt: Any, model: _Trained, directory: Path, dtype: Any) -> None:
    from models.hf.write import with_precision, write_weights
    from sft.files import write_json

    write_json(directory / "config.json", with_precision(model.config, dtype))
    rows = model.shape.real_vocab_size(model.vocab_size)
    write_weights(gpt, model.shape, directory, vocab_size=rows, dtype=dtype)


if __name__ == "__main__":
    log_library_warnings()  # and there is no log, so nobody hears of them
    sys.exit(main())
