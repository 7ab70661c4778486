"""Checkpoints: what is in them, and how a run leaves one.

``run_dir/checkpoints/step-N/`` holds::

    checkpoint.json   step, settings, versions: enough to build the model again
    weights/          ``torch_dist``; any parallel layout and either kernel path can load it
    training/         the same of the optimizer, with the schedule and random numbers
    hf/               everything of an export but the weights (see ``sft.publish``)
    files.json        sizes and checksums of these

A checkpoint is written under another name and renamed, so one that is there is whole, see
:mod:`sft.keeping`.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.exchange import Exchange
from data.tokenizers import Tokenizer
from models.gpt import unwrapped
from sft import keeping
from sft.config import RunConfig
from sft.errors import ConfigError, TrainingError
from sft.exchange import by_rank_0, together
from sft.files import write_json
from sft.record import plain
from sft.sharded import DamagedCheckpoint, read, write_now
from sft.training_state import load_training_state, save_training_state

FORMAT = 2  # 1 had weights only
DESCRIPTION_DIR = "hf"
_DESCRIPTION = "checkpoint.json"
_WEIGHTS, _TRAINING = "weights", "training"
_STEP = re.compile(r"step-\d+")
# What must be in a description, and as what.
_KINDS = {"format": int, "tokenizer_vocab_size": int, "config.model": dict, "config.lora": dict}
_ANOTHER = "take another of the run's checkpoints"


@dataclass(frozen=True, kw_only=True)
class CheckpointWriter:
    """Leaves checkpoints of a run; every rank has one, and calls it alike.

    ``run_dir/hf`` is there since the run began, so that nothing but the disk can fail here.

    Attributes:
        config: the run's.
        tokenizer: what the model is trained with.
        chunks: this rank's GPTModels, bare or wrapped, with adapters or without.
        optimizer: Megatron-Core's.
        scheduler: Megatron-Core's.
        exchange: of all processes of the run.
    """

    config: RunConfig
    tokenizer: Tokenizer
    chunks: Sequence[Any]
    optimizer: Any
    scheduler: Any
    exchange: Exchange

    def save(self, step: int, state: Mapping[str, Any], best: Sequence[int] = ()) -> Path:
        """Leave a checkpoint.

        Args:
            step: optimizer steps done.
            state: what the run needs besides weights and optimizer to go on, as JSON.
            best: steps, the best first; the first that has a checkpoint keeps it whatever its age.

        Raises:
            TrainingError: it cannot be written; on every rank.
        """
        exchange = self.exchange
        partial = by_rank_0(exchange, lambda: self._begun(step, state))
        try:
            write_now(_model_state(self.chunks), partial / _WEIGHTS)
            save_training_state(partial / _TRAINING, self.chunks, self.optimizer, self.scheduler)
        except TrainingError:
            # Raised on every rank.
            if exchange.rank == 0:
                keeping.abandon(partial)
            raise
        share = together(exchange, lambda: keeping.checksums(partial, exchange.rank, exchange.size))
        shares = exchange.gather(share)
        return by_rank_0(exchange, lambda: self._published(partial, step, shares, best))

    def _begun(self, step: int, state: Mapping[str, Any]) -> Path:
        partial = keeping.begin(self.config.run_dir, step)
        try:
            for name in (_WEIGHTS, _TRAINING):
                (partial / name).mkdir()
            shutil.copytree(self.config.run_dir / DESCRIPTION_DIR, partial / DESCRIPTION_DIR)
            description = _description(self.config, self.tokenizer, step)
            write_json(partial / _DESCRIPTION, {**description, "state": state})
        except OSError as error:
            keeping.abandon(partial)
            final = partial.with_name(f"step-{step}")
            raise TrainingError(f"{final}: cannot be written ({error.strerror})") from error
        return partial

    def _published(
        self, partial: Path, step: int, shares: Sequence[Mapping[str, Any]], best: Sequence[int]
    ) -> Path:
        keeping.seal(partial, {name: sums for share in shares for name, sums in share.items()})
        final = keeping.publish(partial, step)
        kept = next((s for s in best if final.with_name(f"step-{s}").is_dir()), None)
        keeping.prune(self.config.run_dir, self.config.train.keep_last, kept, whole=final)
        return final


def load_weights(checkpoint: Path, chunks: Sequence[Any]) -> None:
    """Fill a model with the weights of a checkpoint; every rank calls this.

    Args:
        checkpoint: the directory.
        chunks: GPTModels, bare or wrapped, of its shape; with adapters if those were saved.

    Raises:
        DamagedCheckpoint: they cannot be read, or are not of this shape.
    """
    loaded = read(_model_state(chunks), checkpoint / _WEIGHTS)
    for name, chunk in zip(_names(chunks), chunks, strict=True):
        missing, unexpected = unwrapped(chunk).load_state_dict(loaded[name], strict=False)
        assert not unexpected and all(_is_extra(n) for n in missing), (missing, unexpected)


def load_training(checkpoint: Path, chunks: Sequence[Any], optimizer: Any, scheduler: Any) -> None:
    """Weights, optimizer, schedule and random numbers of a checkpoint; every rank calls this.

    Args:
        checkpoint: the directory.
        chunks: this rank's GPTModels, wrapped.
        optimizer: Megatron-Core's.
        scheduler: Megatron-Core's.

    Raises:
        TrainingError: it cannot be read, though its checksums were right.
    """
    try:
        load_weights(checkpoint, chunks)
        load_training_state(checkpoint / _TRAINING, chunks, optimizer, scheduler)
    except DamagedCheckpoint as error:
        raise TrainingError(f"{error}; {_ANOTHER}, as resume={checkpoint.parent}/step-N") from error


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
    if version not in (1, FORMAT):
        raise ConfigError(
            f"{path}: has format {version}, and this version reads 1 and {FORMAT}; use the version "
            "that it was trained with"
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


def _model_state(chunks: Sequence[Any]) -> dict[str, Any]:
    """The weights with their places; without what Transformer Engine keeps for 8 bits."""
    state = {}
    for name, chunk in zip(_names(chunks), chunks, strict=True):
        sharded: Mapping[str, Any] = unwrapped(chunk).sharded_state_dict()
        state[name] = {key: part for key, part in sharded.items() if not _is_extra(key)}
    return state


def _names(chunks: Sequence[Any]) -> list[str]:
    return ["model"] if len(chunks) == 1 else [f"model{i}" for i in range(len(chunks))]


def _is_extra(name: str) -> bool:
    return name.endswith("_extra_state")
