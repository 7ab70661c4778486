"""From conversations to tokens and targets: bytes, or a tokenizer of Hugging Face.

conversation -> Tokenizer.render -> tokens [n], targets [n]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data.errors import DataError
from data.tokenizers.base import Rendered, Tokenizer, Unrenderable
from data.tokenizers.bytes import ByteTokenizer

__all__ = ["ByteTokenizer", "Rendered", "Tokenizer", "Unrenderable", "load_tokenizer"]


def load_tokenizer(
    name: str,
    *,
    chat_template: str | None = None,
    template_args: Mapping[str, Any] | None = None,
    key: str = "data.tokenizer",
) -> Tokenizer:
    """Return the tokenizer of that name.

    Args:
        name: ``bytes``, a directory, a hub id or a GGUF file.
        chat_template: a Jinja file; None: the tokenizer's own template.
        template_args: further variables of the template.
        key: the setting that holds ``name``, for messages.

    Raises:
        DataError: it cannot be loaded, or the template cannot be used.
    """
    if name == "bytes":
        _refuse_template(chat_template, template_args)
        return ByteTokenizer()
    # Its libraries take a second to import.
    from data.tokenizers.loading import load

    return load(name, chat_template, template_args or {}, key)


def _refuse_template(chat_template: str | None, args: Mapping[str, Any] | None) -> None:
    if chat_template is not None:
        setting = f"data.chat_template={chat_template}"
    elif args:
        setting = "data.template_args"
    else:
        return
    raise DataError(
        f"{setting}: the tokenizer data.tokenizer=bytes has a layout of its own and takes no chat "
        "template; remove it, or set data.tokenizer to a directory, hub id or GGUF file"
    )
