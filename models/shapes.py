"""Shapes of decoder-only transformers: what a model group configures. No torch here.

Reading a shape, checking it and counting its parameters must not cost the seconds that importing
torch takes: a wrong setting is refused before any of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GPTShape:
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
        norm_epsilon: added to the mean square in RMSNorm.
        tie_embeddings: the output layer shares the embedding's weights.
        qkv_bias: bias on the query, key and value projections (Qwen2).
        init_std: standard deviation of the initial weights.
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
    rotary_base: int = 10000
    norm_epsilon: float = 1e-5
    tie_embeddings: bool = False
    qkv_bias: bool = False
    init_std: float = 0.02

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

    @property
    def channels_per_head(self) -> int:
        """Channels of one attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def padded_vocab_size(self, tokenizer_vocab_size: int) -> int:
        """Rows of the embedding for a tokenizer of that many ids.

        Raises:
            ValueError: the shape fixes ``vocab_size`` and the tokenizer needs more.
        """
        if self.vocab_size is not None and self.vocab_size < tokenizer_vocab_size:
            raise ValueError(
                f"vocab_size={self.vocab_size}: the tokenizer needs {tokenizer_vocab_size}"
            )
        needed = self.vocab_size or tokenizer_vocab_size
        return -(-needed // self.vocab_multiple) * self.vocab_multiple

    def parameter_count(self, tokenizer_vocab_size: int) -> int:
        """Trainable parameters of the model of this shape."""
        h, d = self.hidden_size, self.channels_per_head
        query, kv = self.num_attention_heads * d, self.num_query_groups * d
        attention = h * (query + 2 * kv) + query * h
        if self.qkv_bias:
            attention += query + 2 * kv
        feed_forward = 3 * h * self.ffn_hidden_size
        norms = 2 * h
        vocab = self.padded_vocab_size(tokenizer_vocab_size) * h
        embeddings = vocab if self.tie_embeddings else 2 * vocab
        return self.num_layers * (attention + feed_forward + norms) + h + embeddings
