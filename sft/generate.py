"""``python -m sft.generate OUT "prompt"``: ask an exported model, through ``transformers``.

A check that an export is whole: everything comes from its directory, nothing from this project.
Exit codes: 0 done; 2 it cannot be done as asked.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sft.errors import ConfigError
from sft.wording import first_line


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = _parser().parse_args(words)
    try:
        text = answer(
            given.model, given.prompt, system=given.system, max_new_tokens=given.max_new_tokens
        )
    except ConfigError as error:
        print(f"stowage: {error}", file=sys.stderr)
        return 2
    print(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sft.generate",
        description="Ask a model that sft.export wrote, through transformers, with the chat "
        "template in its directory. It says the likeliest token each time, so the same question "
        "gets the same answer.",
    )
    parser.add_argument("model", type=Path, metavar="OUT", help="what sft.export wrote")
    parser.add_argument("prompt", help="what the user says")
    parser.add_argument("--system", metavar="TEXT", help="what the system says before that")
    parser.add_argument(
        "--max-new-tokens", type=int, default=256, metavar="N", help="the longest answer; 256"
    )
    return parser


def answer(
    model: Path, prompt: str, *, system: str | None = None, max_new_tokens: int = 256
) -> str:
    """The answer of an exported model.

    Args:
        model: the export's directory.
        prompt: the user's turn.
        system: the system's, before it; None: what the template puts there.
        max_new_tokens: the longest answer.

    Raises:
        ConfigError: there is no such model, or it cannot be asked.
    """
    if max_new_tokens < 1:
        raise ConfigError(f"--max-new-tokens={max_new_tokens}: must be at least 1")
    adapter = _is_adapter(model)
    import torch

    transformers: Any = importlib.import_module("transformers")  # its types are its own affair
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tokenizer = _loaded(model, transformers.AutoTokenizer, adapter=False)
    inputs = _asked(model, tokenizer, prompt, system)
    loaded = _loaded(model, transformers.AutoModelForCausalLM, adapter=adapter, dtype="auto").eval()
    with torch.no_grad():
        tokens = loaded.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    said: str = tokenizer.decode(
        tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return said.strip()


def _is_adapter(model: Path) -> bool:
    """Whether an export is LoRA's adapters alone; refused if it is none that could be asked."""
    names = ("config.json", "adapter_config.json", "tokenizer_config.json")
    try:
        config, adapter, tokenizer = ((model / name).is_file() for name in names)
    except OSError as error:  # no permission on the way there, a name that is too long
        raise ConfigError(
            f"{model}: cannot be read ({error.strerror or error}); name a directory that this user "
            "may read"
        ) from error
    if not config and not adapter:
        raise ConfigError(
            f"{model}: is no exported model; python -m sft.export RUN {model} writes one"
        )
    if not tokenizer:
        raise ConfigError(
            f"{model}: holds no tokenizer, so there is no way to ask it in words; export a run "
            "whose data.tokenizer is not bytes"
        )
    if adapter and importlib.util.find_spec("peft") is None:
        raise ConfigError(
            f"{model}: is an adapter, and the package peft is not there to load it; install that, "
            "or export without --adapter"
        )
    return adapter


def _loaded(model: Path, auto: Any, *, adapter: bool, **settings: Any) -> Any:
    try:
        return auto.from_pretrained(model, **settings)
    except Exception as error:  # from readers of many formats, in four libraries
        advice = (
            "the model that it is for must be where it was in training, or export without --adapter"
            if adapter
            else "export it again"
        )
        raise ConfigError(f"{model}: cannot be loaded ({first_line(error)}); {advice}") from error


def _asked(model: Path, tokenizer: Any, prompt: str, system: str | None) -> Any:
    """The question as the model's tokens, as its template has it."""
    if tokenizer.chat_template is None:
        raise ConfigError(
            f"{model}: its tokenizer has no chat template; set data.chat_template when training, "
            "and export that run"
        )
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    try:
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    except Exception as error:  # a template is its author's program, and can raise anything
        without = "" if system is None else "; leave out --system if it has no place for that"
        raise ConfigError(
            f"{model}: its chat template refuses the question ({first_line(error)}){without}"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
