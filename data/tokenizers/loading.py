"""From a directory, hub id or GGUF file to a tokenizer: ``AutoTokenizer`` of ``transformers``.

It is what knows how the files of many years and makers are meant: for some models it does not take
the ``tokenizer.json`` at its word. So it is used even where a plain file could be read without it,
though importing it takes five seconds, half of which is torch, and ``tokenizers`` a tenth of one. A
run imports torch in any case, and other settings are checked before. A GGUF file says all there is
to know, and is read without the detour over the model's configuration that would take ten seconds
more. To use a tokenizer that was pickled takes ``tokenizers`` alone, and for the template a part of
``transformers`` without torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from data.errors import DataError, first_line
from data.files.places import expanded
from data.tokenizers.hugging_face import HuggingFaceTokenizer
from data.tokenizers.special import SpecialTokens
from data.tokenizers.template import ChatTemplate, check_args, read_template

_ALLOWED = (
    "set data.tokenizer to a directory with a tokenizer's files, the id of a model on the Hub, a "
    "GGUF file, or bytes"
)


def load(
    name: str, chat_template: str | None, template_args: Mapping[str, Any], key: str
) -> HuggingFaceTokenizer:
    """Load a tokenizer.

    Args:
        name: a directory, a hub id or a GGUF file.
        chat_template: a Jinja file; None: the tokenizer's own template.
        template_args: further variables of the template.
        key: the setting that holds ``name``, for messages.

    Raises:
        DataError: it cannot be loaded or used, or the template cannot.
    """
    source = None if chat_template is None else read_template(chat_template)
    pretrained = load_pretrained(name, key)
    backend = _backend(pretrained, name, key)
    sources = _own_templates(pretrained, name, key) if source is None else {"default": source}
    check_args(template_args, sources)
    added = backend.get_added_tokens_decoder().values()
    tokenizer = HuggingFaceTokenizer(
        name=name,
        backend=backend,
        template=ChatTemplate(
            sources=sources,
            variables={**pretrained.special_tokens_map, **template_args},
            key=f"{key}={name}" if source is None else f"data.chat_template={chat_template}",
        ),
        special=SpecialTokens(tuple(t.content for t in added if t.special and t.content)),
        eos=pretrained.eos_token if pretrained.eos_token_id is not None else None,
        pad_id=next(
            i for i in (pretrained.pad_token_id, pretrained.eos_token_id, 0) if i is not None
        ),
        vocab_size=1 + max(backend.get_vocab(with_added_tokens=True).values()),
        write=partial(write, key),
    )
    _check_end(tokenizer)
    return tokenizer


def load_pretrained(name: str, key: str) -> Any:
    """The tokenizer as ``transformers`` has it.

    Raises:
        DataError: it cannot be loaded.
    """
    where = _locate(name, key)
    # Before the library is loaded: it would start threads that a forked worker does not have. Here
    # one conversation is tokenised at a time, for which it needs none.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        if "gguf_file" in where:
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(**where)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(**where, trust_remote_code=False)
    except Exception as error:  # from readers of many formats, in three libraries
        said = first_line(error)
        raise DataError(
            f"{key}={name}: no tokenizer can be loaded from there ({said}); {_ALLOWED}"
        ) from error


def write(key: str, name: str, template: ChatTemplate, directory: Path) -> None:
    """Write the files of a tokenizer, with another template.

    Args:
        key: the setting that holds ``name``, for messages.
        name: a directory, a hub id or a GGUF file.
        template: to be the tokenizer's own.
        directory: to write to.

    Raises:
        DataError: the tokenizer is no longer where it was.
        OSError: the directory cannot be written.
    """
    pretrained = load_pretrained(name, key)
    sources = dict(template.sources)
    pretrained.chat_template = sources if len(sources) > 1 else sources["default"]
    pretrained.save_pretrained(str(directory))


def _locate(name: str, key: str) -> dict[str, Any]:
    """What ``from_pretrained`` needs to be told of where it is."""
    try:
        path = expanded(name)
        is_dir, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise DataError(
            f"{key}={name}: cannot be read ({error.strerror or error}); {_ALLOWED}"
        ) from error
    if is_dir:
        return {"pretrained_model_name_or_path": str(path), "local_files_only": True}
    if is_file:
        if path.suffix == ".gguf":
            folder = str(path.absolute().parent)
            return {"pretrained_model_name_or_path": folder, "gguf_file": path.name}
        raise DataError(
            f"{key}={name}: is a file; set {key} to the directory it is in, or to a GGUF file"
        )
    if name.startswith(("/", ".", "~")) or name.endswith(".gguf") or name.count("/") > 1:
        raise DataError(f"{key}={name}: does not exist; {_ALLOWED}")
    return {"pretrained_model_name_or_path": name}


def _backend(pretrained: Any, name: str, key: str) -> Any:
    backend = getattr(pretrained, "backend_tokenizer", None)
    if backend is None:
        raise DataError(
            f"{key}={name}: is a tokenizer in Python ({type(pretrained).__name__}), which does not "
            "tell of which characters a token is; use one with a tokenizer.json"
        )
    backend.no_truncation()
    backend.no_padding()
    backend.post_processor = None  # adds special tokens, and trims the offsets of the others
    return backend


def _own_templates(pretrained: Any, name: str, key: str) -> Mapping[str, str]:
    found = pretrained.chat_template
    sources = {"default": found} if isinstance(found, str) else dict(found or {})
    if "default" not in sources:
        raise DataError(
            f"{key}={name}: has no chat template, so it is not known how its model takes "
            "conversations; set data.chat_template to a Jinja file, or use the tokenizer of a "
            "model that was made for chats"
        )
    return sources


def _check_end(tokenizer: HuggingFaceTokenizer) -> None:
    """Try the template, and refuse one after which nothing could end an answer."""
    frame = tokenizer.frame
    if frame is None or tokenizer.eos is not None:
        return
    if not tokenizer.special.ends(frame.closing.rstrip()):
        raise DataError(
            f"{tokenizer.template.key}: the chat template writes no special token behind an "
            "answer, and the tokenizer has no eos_token to add, so the model would never stop; "
            "set data.chat_template to a file with a template that ends answers"
        )
