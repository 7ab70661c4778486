"""The norm of layers in plain PyTorch, under sequence parallelism too."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig


class RMSNorm(torch.nn.RMSNorm):
    """RMSNorm (Zhang & Sennrich 2019) for Megatron-Core's layers.

    Megatron-Core's own wrapper of torch's refuses sequence parallelism. All it takes is a mark:
    each rank norms its own positions, so Megatron-Core must sum the weight's gradient over them.
    """

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_unused: Any
    ) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
