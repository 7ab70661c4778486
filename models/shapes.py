"""Shapes of decoder-only transformers: what a model group configures. No torch here.

Reading a shape, checking it and counting its parameters must not cost the seconds that importing
torch takes: a wrong setting is refused before any of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from models.rope_scaling import RopeScaling


class ModelSource(ABC):
    """What can stand under ``model``: a dataclass that a shape follows from."""

    @abstractmethod
    def resolve(self) -> GPTShape:
        """The shape, with everything that ``init_from`` says about it.

        Raises:
            ValueError: ``init_from`` cannot be read, or is a model that cannot be built here.
        """


@dataclass(frozen=True, kw_only=True)
class GPTShape(ModelSource):
    """A decoder-only transformer: RMSNorm, SwiGLU, rotary positions, grouped queries.

    Attributes:
        num_layers: transformer blocks.
        hidden_size: width of the residual stream.
        ffn_hidden_size: width inside the gated feed-forward.
        num_attention_heads: query heads.
        num_query_groups: key and value heads; query heads are shared out over them.
        head_dim: channels per head; None: ``hidden_size / num_attention_heads``.
        context_length: tokens; the longest sequence the model is meant for.
        vocab_size: rows of the embedding; None: what the tokenizer needs.
        vocab_multiple: the embedding is padded to a multiple of it.
        rotary_base: base of the rotary frequencies.
        rope_scaling: how they are lowered for a longer context; None: they are not.
        norm_epsilon: added to the mean square in RMSNorm.
        tie_embeddings: the output layer shares the embedding's weights.
        qkv_bias: bias on the query, key and value projections (Qwen2).
        qk_norm: RMSNorm over each query and key head (Qwen3).
        init_std: standard deviation of the initial weights.
        init_from: where the weights come from: a directory as ``transformers`` saves it, the id of
            one on the Hugging Face Hub, or a GGUF file; None: they are drawn.
    """

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    head_dim: int | None = None
    context_length: int
    vocab_size: int | None = None
    vocab_multiple: int = 64
    rotary_base: float = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_epsilon: float = 1e-5
    tie_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    init_std: float = 0.02
    init_from: str | None = None

    def __post_init__(self) -> None:
        for name in (
            "num_layers",
            "hidden_size",
            "ffn_hidden_size",
            "num_attention_heads",
            "num_query_groups",
            "context_length",
            "vocab_multiple",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("rotary_base", "norm_epsilon", "init_std"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be above 0")
        if self.head_dim is not None and self.head_dim < 2:
            raise ValueError(f"head_dim={self.head_dim}: must be at least 2, or null")
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"num_query_groups={self.num_query_groups}: must divide "
                f"num_attention_heads={self.num_attention_heads}"
            )
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size}: must be a multiple of "
                f"num_attention_heads={self.num_attention_heads}, or set head_dim"
            )
        if self.channels_per_head % 2:
            raise ValueError(
                f"head_dim={self.channels_per_head}: must be even, rotary positions turn pairs"
            )

    def resolve(self) -> GPTShape:
        """This shape; of one with ``init_from``, after holding it against what lies there.

        Raises:
            ValueError: as :meth:`ModelSource.resolve`, or the two differ.
        """
        if self.init_from is None:
            return self
        from models.hf.shape import agreed

        return agreed(self, self.init_from)

    @property
    def channels_per_head(self) -> int:
        """Channels of one attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def real_vocab_size(self, tokenizer_vocab_size: int) -> int:
        """Rows of the embedding that stand for an id; those after them are padding."""
        return self.vocab_size or tokenizer_vocab_size

    def padded_vocab_size(self, tokenizer_vocab_size: int) -> int:
        """Rows of the embedding for a tokenizer of that many ids.

        Raises:
            ValueError: the shape fixes ``vocab_size`` and the tokenizer needs more.
        """
        if self.vocab_size is not None and self.vocab_size < tokenizer_vocab_size:
            raise ValueError(
                f"vocab_size={self.vocab_size}: the tokenizer needs {tokenizer_vocab_size}"
            )
        needed = self.real_vocab_size(tokenizer_vocab_size)
        return -(-needed // self.vocab_multiple) * self.vocab_multiple

    def parameter_count(self, tokenizer_vocab_size: int) -> int:
        """Trainable parameters of the model of this shape."""
        attention_bias = self._query_channels + 2 * self._kv_channels if self.qkv_bias else 0
        norms = 2 * self.hidden_size + (2 * self.channels_per_head if self.qk_norm else 0)
        layer = self._weights_per_layer + attention_bias + norms
        vocab = self.padded_vocab_size(tokenizer_vocab_size) * self.hidden_size
        embeddings = vocab if self.tie_embeddings else 2 * vocab
        return self.num_layers * layer + self.hidden_size + embeddings

    def flops_per_token(self, tokenizer_vocab_size: int) -> int:
        """FLOPs of training on one token, but for those that grow with its sample's length.

        ``6 * (num_layers * (attention's projections + feed-forward) + output layer)``, in weights:
        every weight of a matrix is one multiply-add a token, 2 FLOPs, and the backward pass takes
        twice the forward's, one for the gradient of the input and one for that of the weight. The
        output layer counts, at its padded size and whether or not it shares the embedding's
        weights; looking up the embedding, norms, biases and recomputation do not.

        Raises:
            ValueError: as :meth:`padded_vocab_size` does.
        """
        output_layer = self.padded_vocab_size(tokenizer_vocab_size) * self.hidden_size
        return 6 * (self.num_layers * self._weights_per_layer + output_layer)

    def flops_per_squared_token(self) -> int:
        """FLOPs of training that attention takes, per squared length of a sample in tokens.

        ``6 * num_layers * num_attention_heads * head_dim``. For n tokens, scores and their product
        with the values are ``n * n * head_dim`` multiply-adds each and head, of which a causal
        kernel does half: ``2 * 2 * n^2 / 2 = 2 n^2`` FLOPs a channel, and three times that with
        the backward pass. Grouped queries share keys and values but save none of it. What a kernel
        recomputes in its backward pass does not count, nor does softmax.
        """
        return 6 * self.num_layers * self._query_channels

    @property
    def _query_channels(self) -> int:
        return self.num_attention_heads * self.channels_per_head

    @property
    def _kv_channels(self) -> int:
        return self.num_query_groups * self.channels_per_head

    @property
    def _weights_per_layer(self) -> int:
        """Weights in a layer's matrices: query, key, value, output, and three of the SwiGLU."""
        attention = 2 * self._query_channels + 2 * self._kv_channels
        return self.hidden_size * (attention + 3 * self.ffn_hidden_size)
