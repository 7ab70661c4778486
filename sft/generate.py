"""``python -m sft.generate OUT "prompt"``: ask an exported model, through ``transformers``.

A check that an export is whole: everything comes from its directory, nothing from this project.
Exit codes: 0 done; 2 it cannot be done as asked.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sft.errors import ConfigError


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
    if not any((model / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise ConfigError(
            f"{model}: is no exported model; python -m sft.export RUN {model} writes one"
        )
    if not (model / "tokenizer_config.json").is_file():
        raise ConfigError(f"{model}: holds no tokenizer, so there is no way to ask it in words")
    import torch

    transformers: Any = importlib.import_module("transformers")  # its types are its own affair
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    if tokenizer.chat_template is None:
        raise ConfigError(f"{model}: its tokenizer has no chat template")
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="auto").eval()
    with torch.no_grad():
        tokens = loaded.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    said: str = tokenizer.decode(
        tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return said.strip()


if __name__ == "__main__":
    sys.exit(main())
