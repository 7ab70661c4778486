"""What a checkpoint's run was, so that another does not go on from it unawares. No torch here.

Whatever decides which rows come next, and what is learned of them, is held against what the
checkpoint says. How long a run is, its learning rate, how often it validates and on how many
processes it runs may change freely.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from data.chat import ConversationEncoder
from data.errors import DataError
from data.jsonl import Records
from data.sample import Sample
from sft.checks import Derived
from sft.config import RunConfig
from sft.errors import ConfigError
from sft.record import describe_records, plain
from sft.settings import RESUME_ALLOW

_PROBES = 16  # conversations that tell whether tokenizer and template are the same


def identity(
    config: RunConfig, derived: Derived, records: Records, encode: ConversationEncoder
) -> dict[str, Any]:
    """What may not change, by name, as JSON; some may, see ``sft.settings.RESUME_ALLOW``.

    Args:
        config: the run's.
        derived: what follows from it.
        records: the training conversations.
        encode: from raw line to sample.
    """
    data, packing, train = config.data, config.packing, config.train
    return {
        "data": {
            **describe_records(records),
            "shuffle": data.shuffle,
            "overlong": data.overlong.value,
        },
        "tokenizer": {
            "name": derived.tokenizer.name,
            "loss_on": data.loss_on.value,
            "probe": _probe(records, encode),
        },
        "packing": {
            "mode": packing.mode.value,
            "capacity": packing.capacity,
            "pad_multiple": derived.pad_multiple,
            "buffer_size": packing.buffer_size,
            "level_window": packing.level_window,
        },
        "packer": plain(config.packer),
        "batch": {
            "global_batch_tokens": train.global_batch_tokens,
            "global_batch_samples": train.global_batch_samples,
            "global_batch_real_tokens": train.global_batch_real_tokens,
            # An epoch of real tokens is cut evenly, and how depends on how many there are.
            "epochs": train.epochs if train.global_batch_real_tokens is not None else None,
            "micro_batch_size": train.micro_batch_size,
        },
        "seed": config.seed,
        "model": {k: v for k, v in plain(config.model).items() if k != "init_from"},
        "lora": plain(config.lora),
        "loss": plain(config.loss),
    }


def _probe(records: Records, encode: ConversationEncoder) -> str:
    """A hash of what the first conversations are as tokens and targets.

    Names tell little: a tokenizer's directory moves, and its template is edited in place.
    """
    digest = blake2b(digest_size=16)
    # Whole, whatever the capacity: that is compared by itself.
    encode = replace(encode, capacity=sys.maxsize)
    for row in range(min(_PROBES, len(records))):
        try:
            outcome = encode(records.read(row), records.source_id(row))
        except DataError:  # data.overlong=error: it will say so when training comes to it
            continue
        if isinstance(outcome, Sample):
            digest.update(outcome.tokens.tobytes() + outcome.targets.tobytes())
        digest.update(b"|")
    return digest.hexdigest()


def refuse_changes(
    was: Mapping[str, Any], now: Mapping[str, Any], *, allow: Collection[str], checkpoint: str
) -> list[str]:
    """Hold a run against the one that left a checkpoint.

    Args:
        was: :func:`identity` of that one.
        now: of this one.
        allow: names that may differ.
        checkpoint: for the message.

    Returns:
        What differs and may, a sentence each.

    Raises:
        ConfigError: naming what differs and may not, or what the place in the data cannot bear.
    """
    found = {
        name: differences
        for name in was
        if (differences := _differences(was[name], now.get(name), name))
    }
    buffered = "loader" in (was["packing"]["mode"], now["packing"]["mode"])
    refused = [name for name in found if name not in allow]
    if refused:
        said = "; ".join(text for name in refused for text in found[name])
        use = "Use the same"
        may = set(RESUME_ALLOW) - ({"packing", "packer"} if buffered else set())
        if may.issuperset(refused):
            use += f", or resume.allow=[{','.join(sorted(refused))}] to go on all the same"
        raise ConfigError(f"{checkpoint}: is of a run with other settings: {said}. {use}")
    packs = {"packing", "packer"} & set(found)
    if packs and buffered:
        raise ConfigError(
            f"resume.allow=[{','.join(sorted(packs))}]: where the loader packs, the place in the "
            "data is one among the rows of a buffer, which other settings would fill otherwise "
            f"({'; '.join(text for name in sorted(packs) for text in found[name])}); use the same"
        )
    return [text for differences in found.values() for text in differences]


def _differences(was: Any, now: Any, name: str) -> list[str]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        keys = [*was, *(key for key in now if key not in was)]
        return [
            t for key in keys for t in _differences(was.get(key), now.get(key), _joined(name, key))
        ]
    return [] if was == now else [f"{name} was {_shown(was)} and is {_shown(now)}"]


# What a person calls what is compared; other names are the keys of settings.
_SPOKEN = {
    "data.fingerprint": "the content of the training conversations",
    "data.conversations": "the number of training conversations",
    "packer._target_": "packer",
    "model._target_": "model",
    "tokenizer.name": "data.tokenizer",
    "tokenizer.loss_on": "data.loss_on",
    "tokenizer.probe": "what the tokenizer and its template make of the conversations",
}


def _joined(name: str, key: str) -> str:
    full = f"train.{key}" if name == "batch" else f"{name}.{key}"
    return _SPOKEN.get(full, full)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).rpartition(".")[2] if isinstance(value, str) else str(value)
