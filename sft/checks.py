"""Settings that must fit one another; refused by name before anything heavy is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from data.errors import DataError
from data.packing.settings import PackingMode
from data.padding import required_pad_multiple, round_up
from data.tokenizers import Tokenizer, load_tokenizer
from sft.config import RunConfig
from sft.errors import ConfigError
from sft.evaluation import check_eval
from sft.launch import ALONE, Place
from sft.lora import check_lora
from sft.parallel_checks import check_parallel

_DEFAULT_MICRO_BATCH_SIZE = 4


@dataclass(frozen=True, kw_only=True)
class Derived:
    """What follows from the settings together.

    Attributes:
        tokenizer: the one that ``data.tokenizer`` names, or that of the model the weights are from.
        pad_multiple: tokens, for samples and rows.
        packs_per_step: rows per optimizer step where the loader packs by
            ``train.global_batch_tokens``; 0 where steps are counted in something else.
        micro_batch_size: conversations per rectangle where nobody packs.
    """

    tokenizer: Tokenizer
    pad_multiple: int
    packs_per_step: int
    micro_batch_size: int


def check(config: RunConfig, place: Place = ALONE) -> Derived:
    """Refuse settings that do not fit together.

    Args:
        config: the run's.
        place: of this process among those of the run.

    Raises:
        ConfigError: naming the keys, their values, and values that would do.
    """
    check_parallel(config, place.world_size)
    multiple = _pad_multiple(config)
    _check_capacity(config, multiple)
    check_eval(config)
    check_lora(config)
    packs_per_step, micro_batch_size = _check_batch(config), _check_micro_batch(config)
    return Derived(
        tokenizer=_tokenizer(config),  # last, because loading it may take seconds
        pad_multiple=multiple,
        packs_per_step=packs_per_step,
        micro_batch_size=micro_batch_size,
    )


def _tokenizer(config: RunConfig) -> Tokenizer:
    data, init_from = config.data, config.model.init_from
    key, name = "data.tokenizer", data.tokenizer
    if name is None:
        key, name = (
            ("data.tokenizer", "bytes") if init_from is None else ("model.init_from", init_from)
        )
    try:
        tokenizer = _load(name, data.chat_template, json.dumps(data.template_args), key)
    except DataError as error:
        raise ConfigError(str(error)) from error
    _check_room(config, tokenizer, f"{key}={name}")
    return tokenizer


def _check_room(config: RunConfig, tokenizer: Tokenizer, named: str) -> None:
    """Every id needs a row in the embedding; of a published model their number is fixed."""
    init_from, rows = config.model.init_from, config.model.vocab_size
    try:
        config.model.padded_vocab_size(tokenizer.vocab_size)
    except ValueError as error:
        if init_from is None:
            why = f"model.{error} ({named}); use that many or more, or null"
        elif config.data.tokenizer is None:
            why = (
                f"{named}: its tokenizer has {tokenizer.vocab_size} ids, and its embedding only "
                f"{rows} rows; set data.tokenizer to one of at most {rows} ids"
            )
        else:
            why = (
                f"{named}: has {tokenizer.vocab_size} ids, and the model in model.init_from="
                f"{init_from} only {rows} rows in its embedding; use data.tokenizer=null, which is "
                "the model's own"
            )
        raise ConfigError(why) from error


# The choices of a preview and the jobs of a sweep in one process have the same one.
@lru_cache(maxsize=1)
def _load(name: str, chat_template: str | None, template_args: str, key: str) -> Tokenizer:
    return load_tokenizer(
        name, chat_template=chat_template, template_args=json.loads(template_args), key=key
    )


def _pad_multiple(config: RunConfig) -> int:
    parallel = config.parallel
    required = required_pad_multiple(
        tensor_parallel=parallel.tp,
        context_parallel=parallel.cp,
        sequence_parallel=parallel.sp,
    )
    wanted = config.packing.pad_multiple
    if wanted is None:
        return required
    if wanted % required:
        why = f" with parallel.cp={parallel.cp}" if parallel.cp > 1 else ""
        why += f" with parallel.tp={parallel.tp} parallel.sp=true" if parallel.sp else ""
        raise ConfigError(
            f"packing.pad_multiple={wanted}: must be a multiple of {required}{why}; use "
            f"{round_up(wanted, required)}, or null to have it derived"
        )
    return wanted


def _check_capacity(config: RunConfig, multiple: int) -> None:
    capacity, context = config.packing.capacity, config.model.context_length
    if capacity > context:
        most = context // multiple * multiple
        use = f"packing.capacity={most} or less, or " if most > 1 else ""
        raise ConfigError(
            f"packing.capacity={capacity}: larger than the model's context "
            f"model.context_length={context}; use {use}a model with a longer context"
        )
    if capacity % multiple:
        below = capacity // multiple * multiple
        choices = [str(c) for c in (below, below + multiple) if 0 < c <= context]
        use = " or ".join(choices) or "a smaller packing.pad_multiple"
        raise ConfigError(
            f"packing.capacity={capacity}: must be a multiple of the pad multiple {multiple} "
            f"(packing.pad_multiple); use {use}"
        )


def _check_batch(config: RunConfig) -> int:
    mode, train = config.packing.mode, config.train
    capacity = config.packing.capacity
    if train.global_batch_samples is not None:
        if mode is PackingMode.LOADER:
            raise ConfigError(
                f"train.global_batch_samples={train.global_batch_samples}: the loader hands over "
                "packs, not samples; set train.global_batch_tokens or "
                "train.global_batch_real_tokens, and train.global_batch_samples=null, or use "
                "packing=trainer"
            )
        return 0
    for name in ("global_batch_tokens", "global_batch_real_tokens"):
        value = getattr(train, name)
        if value is not None and value < capacity:
            raise ConfigError(
                f"train.{name}={value}: a step must hold at least one full row; use "
                f"train.{name}={capacity} or more, or a smaller packing.capacity than {capacity}"
            )
    tokens = train.global_batch_tokens
    if tokens is None:
        return 0
    if mode is PackingMode.LOADER and tokens % capacity:
        below = tokens // capacity * capacity
        raise ConfigError(
            f"train.global_batch_tokens={tokens}: the loader's rows are packing.capacity="
            f"{capacity} wide, so it must be a multiple of that; use {below} or {below + capacity}"
        )
    return tokens // capacity


def _check_micro_batch(config: RunConfig) -> int:
    size, mode = config.train.micro_batch_size, config.packing.mode
    if size is not None and mode is not PackingMode.NONE:
        raise ConfigError(
            f"train.micro_batch_size={size}: a packed row is its own microbatch, and packing.mode "
            f"is {mode.value}; remove it, or use packing=none"
        )
    return size or _DEFAULT_MICRO_BATCH_SIZE
