"""The architectures that can be read and written. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Family:
    """An architecture of ``transformers`` that is a :class:`~models.shapes.GPTShape`.

    Attributes:
        architecture: class in ``transformers``.
        model_type: what its configurations call themselves.
        gguf: what GGUF files call it.
        qkv_bias: bias on query, key and value.
        qk_norm: RMSNorm over each query and key head.
        head_dim: channels per head where a configuration does not say; None: the hidden size over
            the heads.
        sliding_window: tokens, where a configuration does not say; None: there is none.
        windowed: whether the window is used where a configuration does not say.
        rotated_gguf: GGUF files hold its query and key weights in another order of channels.
    """

    architecture: str
    model_type: str
    gguf: str | None
    qkv_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None
    sliding_window: int | None = None
    windowed: bool = False
    rotated_gguf: bool = False


LLAMA = Family(architecture="LlamaForCausalLM", model_type="llama", gguf="llama", rotated_gguf=True)
QWEN2 = Family(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    gguf="qwen2",
    qkv_bias=True,
    sliding_window=4096,
)
QWEN3 = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    gguf="qwen3",
    qk_norm=True,
    head_dim=128,
    sliding_window=4096,
)
# A GGUF file of a Mistral calls itself a Llama: without its window it is one.
MISTRAL = Family(
    architecture="MistralForCausalLM",
    model_type="mistral",
    gguf=None,
    sliding_window=4096,
    windowed=True,
)
FAMILIES = (LLAMA, QWEN2, QWEN3, MISTRAL)


def family_of_shape(*, qkv_bias: bool, qk_norm: bool) -> Family:
    """The architecture that a model without one of its own is written as.

    Raises:
        ValueError: there is none that has both.
    """
    if qkv_bias and qk_norm:
        raise ValueError(
            "qkv_bias=true and qk_norm=true: no architecture that can be written has both"
        )
    return QWEN3 if qk_norm else QWEN2 if qkv_bias else LLAMA
