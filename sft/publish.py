"""What a trained model is given besides its weights, so that ``transformers`` can use it.

Written when a run begins and copied into every checkpoint: the tokenizer, the template and the
original's configuration are then those that were trained with, whatever became of these since.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from data.conversation import BadRecord, Conversation, Message
from data.targets import LossOn
from data.tokenizers import ByteTokenizer, Tokenizer
from models.hf.config import read_generation_config
from models.hf.write import published_config
from models.shapes import GPTShape
from sft.errors import ConfigError
from sft.files import write_json


def write_description(directory: Path, shape: GPTShape, tokenizer: Tokenizer) -> None:
    """Write ``config.json``, ``generation_config.json``, and the tokenizer with its template.

    The tokenizer of bytes is left out: ``transformers`` has no form of it.

    Args:
        directory: is made.
        shape: the model's.
        tokenizer: what it was trained with.

    Raises:
        ValueError: the shape has no architecture in ``transformers``.
        ConfigError: the original's generation configuration cannot be read.
        DataError: what the tokenizer was loaded from is gone.
        OSError: it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = published_config(shape, shape.real_vocab_size(tokenizer.vocab_size))
    generation = _generation_config(shape)
    known = generation.get("eos_token_id", config.get("eos_token_id"))
    ends = list(dict.fromkeys([*_turn_ends(tokenizer), *_listed(known)]))
    if config.get("eos_token_id") is None and ends:
        config["eos_token_id"] = ends[0]
    if config.get("pad_token_id") is None:
        config["pad_token_id"] = tokenizer.pad_id
    for key in ("bos_token_id", "pad_token_id"):
        generation.setdefault(key, config.get(key))
    # Of several, generation stops at each: a model that was given a new chat template ends its
    # turns with another token than it ended texts with.
    generation["eos_token_id"] = ends
    generation.pop("transformers_version", None)
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", generation)
    if not isinstance(tokenizer, ByteTokenizer):
        tokenizer.save(directory)


def _generation_config(shape: GPTShape) -> dict[str, Any]:
    if shape.init_from is None:
        return {}
    try:
        return read_generation_config(shape.init_from)
    except ValueError as error:
        raise ConfigError(f"model.{error}") from error


def _turn_ends(tokenizer: Tokenizer) -> list[int]:
    """The token that ends an answer, if it is one that no text has."""
    conversation = Conversation(
        messages=(Message(role="user", content="Yes?"), Message(role="assistant", content="No."))
    )
    try:
        rendered = tokenizer.render(conversation, LossOn.LAST)
    except BadRecord:
        return []  # a template that asks for more than two turns
    predicted: Iterable[int] = rendered.tokens[rendered.targets].tolist()
    return [token for token in predicted if token in tokenizer.special_ids][-1:]


def _listed(ids: Any) -> list[int]:
    if ids is None:
        return []
    return list(ids) if isinstance(ids, list) else [ids]
