"""Checkpoints: the weights as Megatron-Core's distributed format, and what they are.

``run_dir/checkpoints/step-N/`` holds::

    checkpoint.json   step, settings, versions: enough to build the model again
    weights/          ``torch_dist``; any tensor-parallel size and either kernel path can load it
    hf/               everything of an export but the weights (see ``sft.publish``)

A checkpoint is written under another name and renamed, so one that is there is whole.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing

from data.tokenizers import Tokenizer
from models.gpt import unwrapped
from sft.config import RunConfig
from sft.errors import ConfigError, TrainingError
from sft.files import write_json
from sft.record import plain

FORMAT = 1
DESCRIPTION_DIR = "hf"
_DESCRIPTION = "checkpoint.json"
_STEP = re.compile(r"step-\d+")
# What must be in a description, and as what.
_KINDS = {"format": int, "tokenizer_vocab_size": int, "config.model": dict, "config.lora": dict}
_ANOTHER = "take another of the run's checkpoints"


def save_weights(config: RunConfig, tokenizer: Tokenizer, model: Any, step: int) -> Path:
    """Leave a checkpoint of the weights; every rank calls this.

    ``run_dir/hf`` is there since the run began, so that nothing but the disk can fail here.

    Megatron-Core starts a process for its queue of results, so the program that trains must guard
    its entry with ``if __name__ == "__main__"``.

    Args:
        config: the run's.
        tokenizer: what the model is trained with.
        model: a GPTModel, bare or wrapped, with adapters or without.
        step: optimizer steps done.

    Raises:
        TrainingError: it cannot be written.
    """
    final = config.run_dir / "checkpoints" / f"step-{step}"
    partial = final.with_name(f".{final.name}.partial")
    try:
        if dist.get_rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
            (partial / "weights").mkdir(parents=True)
            shutil.copytree(config.run_dir / DESCRIPTION_DIR, partial / DESCRIPTION_DIR)
            write_json(partial / _DESCRIPTION, _description(config, tokenizer, step))
        dist.barrier()
        dist_checkpointing.save({"model": _sharded(unwrapped(model))}, str(partial / "weights"))
        dist.barrier()
        if dist.get_rank() == 0:
            partial.replace(final)
    except OSError as error:
        raise TrainingError(f"{final}: cannot be written ({error.strerror})") from error
    return final


def load_weights(checkpoint: Path, model: Any) -> None:
    """Fill a model with the weights of a checkpoint.

    Args:
        checkpoint: the directory.
        model: a GPTModel of its shape, bare or wrapped; with adapters if those were saved.
    """
    bare = unwrapped(model)
    loaded = dist_checkpointing.load({"model": _sharded(bare)}, str(checkpoint / "weights"))
    missing, unexpected = bare.load_state_dict(loaded["model"], strict=False)
    assert not unexpected and all(_is_extra(name) for name in missing), (missing, unexpected)


def find_checkpoint(where: Path) -> Path:
    """The checkpoint that a path names: itself, or a run's last.

    Raises:
        ConfigError: there is none.
    """
    try:
        if (where / _DESCRIPTION).is_file():
            return where
        steps = {
            int(p.name.removeprefix("step-")): p
            for p in where.glob("checkpoints/step-*")
            # Not a copy that somebody made under another name.
            if _STEP.fullmatch(p.name) and (p / _DESCRIPTION).is_file()
        }
        is_run, has_ended = (where / "run.json").is_file(), (where / "summary.json").is_file()
    except OSError as error:  # no permission on the way there, a name that is too long
        raise ConfigError(
            f"{where}: cannot be read ({error.strerror or error}); name a directory that this user "
            "may read"
        ) from error
    if steps:
        return steps[max(steps)]
    if not is_run:
        raise ConfigError(
            f"{where}: is neither a run nor a checkpoint; name a run's directory, or one of its "
            "checkpoints/step-N"
        )
    if has_ended:
        raise ConfigError(
            f"{where}: this run left no checkpoint; with train.save_every=0 one is left at its end"
        )
    raise ConfigError(
        f"{where}: this run has left no checkpoint, and has not come to its end; wait for it, or "
        "run it again with train.save_every=N, which leaves one every N steps"
    )


def read_description(checkpoint: Path) -> Mapping[str, Any]:
    """What ``checkpoint.json`` says.

    Raises:
        ConfigError: it cannot be read, lacks something, or is of a later format.
    """
    path = checkpoint / _DESCRIPTION
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); {_ANOTHER}") from error
    found: Mapping[str, Any] = content if isinstance(content, dict) else {}
    version = found.get("format", FORMAT)
    if version != FORMAT:
        raise ConfigError(
            f"{path}: has format {version}, and this version reads {FORMAT}; use the version that "
            "it was trained with"
        )
    lacking = [name for name, kind in _KINDS.items() if not isinstance(_at(found, name), kind)]
    if lacking:
        raise ConfigError(f"{path}: lacks {', '.join(lacking)}, so it is damaged; {_ANOTHER}")
    return found


def _at(content: Any, name: str) -> Any:
    for part in name.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def _description(config: RunConfig, tokenizer: Tokenizer, step: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "step": step,
        "tokenizer": tokenizer.name,
        "tokenizer_vocab_size": tokenizer.vocab_size,
        "config": plain(config),
        "versions": {n: importlib.metadata.version(n) for n in ("torch", "megatron-core")},
    }


def _sharded(model: Any) -> dict[str, Any]:
    """The model's weights with their places; without what Transformer Engine keeps for 8 bits."""
    sharded: Mapping[str, Any] = model.sharded_state_dict()
    return {name: part for name, part in sharded.items() if not _is_extra(name)}


def _is_extra(name: str) -> bool:
    return name.endswith("_extra_state")
