"""The one place that decides to what multiple samples and rows are padded."""

from __future__ import annotations

import math


def required_pad_multiple(
    *,
    tensor_parallel: int = 1,
    context_parallel: int = 1,
    sequence_parallel: bool = False,
    slab_multiple: int = 1,
) -> int:
    """The multiple that each sample's padded length and each row's width must have.

    Context parallelism cuts every padded sample into ``2 * context_parallel`` chunks, sequence
    parallelism cuts the row once more by ``tensor_parallel``, and a low-precision recipe wants
    the slab that one rank multiplies to be a multiple of ``slab_multiple`` tokens. Packers and
    layout both read this number, so that they cannot disagree.

    Args:
        tensor_parallel: ranks that share each weight matrix.
        context_parallel: ranks that share each row.
        sequence_parallel: whether activations are also cut along the row by ``tensor_parallel``.
        slab_multiple: tokens; 1 for fp32 and bf16, 16 for fp8, 32 for mxfp8, 128 for blockwise.

    Returns:
        The smallest multiple, in tokens, that satisfies all of them.
    """
    chunks = 2 * context_parallel if context_parallel > 1 else 1
    if sequence_parallel:
        chunks *= tensor_parallel
    ranks = context_parallel * (tensor_parallel if sequence_parallel else 1)
    return math.lcm(chunks, slab_multiple * ranks)


def round_up(tokens: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is at least ``tokens``."""
    return -(-tokens // multiple) * multiple
