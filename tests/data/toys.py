"""Small tokenizers of Hugging Face, made offline, and templates in the style of known models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# SmolLM2's way: a system prompt where the conversation has none.
CHATML_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}" + CHATML
)

LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim }}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

# No generation prompt, and the system prompt stands in the first question.
MISTRAL = (
    "{% if messages[0]['role'] == 'system' %}"
    "{% set system, turns = messages[0]['content'] + '\n\n', messages[1:] %}"
    "{% else %}{% set system, turns = '', messages %}{% endif %}"
    "{{ bos_token }}{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)

GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

# Qwen3's way: only answers behind the last question keep their thinking, and they have some.
THINKING = (
    "{% set ns = namespace(last=0) %}"
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' %}"
    "{% set thought = '' %}"
    "{% if '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.index0 > ns.last %}"
    "{{ '<think>\n' + thought + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{% else %}{{ content }}{% endif %}"
    "{% else %}{{ content }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)

TAGGED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Calls of tools, and their results, in JSON.
TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + call.function | tojson + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Nothing ends an answer, and no token is special.
BARE = (
    "{% for message in messages %}"
    "{{ message['role'].upper() + ':\n' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:\n' }}{% endif %}"
)

SPECIALS = (
    *("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>"),
)
# Words of a model that are single tokens and yet no structure.
WORDS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

_LINES = (
    "hello world how are you",
    "the answer is yes and the question was no",
    "system user assistant model helpful USER ASSISTANT",
)


def save_tokenizer(
    path: Path,
    template: str | None,
    *,
    specials: Sequence[str] = SPECIALS,
    eos: str | None = "</s>",
    pad: str | None = "<pad>",
    add_bos: bool = False,
) -> str:
    """Train a byte-level BPE on a few lines and save it as ``transformers`` does; its directory.

    No merge joins blanks, so none crosses a seam of a template that ends headers with one.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=350,
        special_tokens=list(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_LINES, trainer)
    backend.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
    return wrap(path, backend, template, bos="<s>", eos=eos, pad=pad, add_bos=add_bos)


def save_merging(path: Path, template: str, merges: Iterable[tuple[str, str]]) -> str:
    """A BPE of ASCII characters that merges anything with anything, as ``merges`` say."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    vocab = {token: i for i, token in enumerate(["</s>", *map(chr, range(10, 127))])}
    pairs = list(merges)
    for left, right in pairs:
        vocab[left + right] = len(vocab)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    return wrap(path, backend, template, bos=None, eos="</s>", pad=None)


def wrap(
    path: Path,
    backend: Any,
    template: str | None,
    *,
    bos: str | None,
    eos: str | None,
    pad: str | None,
    add_bos: bool = False,
) -> str:
    """Save a tokenizer with its template."""
    from transformers import PreTrainedTokenizerFast

    named = {"bos_token": bos, "eos_token": eos, "pad_token": pad}
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        add_bos_token=add_bos,
        **{name: token for name, token in named.items() if token is not None},
    )
    wrapped.chat_template = template
    wrapped.save_pretrained(str(path))
    return str(path)


def theirs(path: str) -> Any:
    """What ``transformers`` itself makes of a saved tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)
