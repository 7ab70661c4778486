"""What LoRA adapts, and how much of it: the ``lora`` group. No torch here."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from models.shapes import GPTShape

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
_SHORTHANDS = {"attention": ATTENTION, "mlp": MLP, "all": ATTENTION + MLP}


@dataclass(frozen=True, kw_only=True)
class LoRASettings:
    """Low-rank adaptation (Hu et al. 2021, section 4.1).

    All weights of the model are frozen. To each target matrix W a product of two narrow ones is
    added, ``W x + alpha / rank * B A x``, and only these are trained.

    Attributes:
        rank: rows of A and columns of B; None: no LoRA, every weight is trained.
        alpha: the product is multiplied by ``alpha / rank``; None: twice the rank.
        dropout: the share of A's inputs that is set to 0 in training.
        targets: the matrices by their names in Hugging Face's models (``q_proj k_proj v_proj
            o_proj gate_proj up_proj down_proj``), or ``attention``, ``mlp``, ``all``; None: all.
    """

    rank: int | None = None
    alpha: float | None = None
    dropout: float = 0.0
    targets: list[str] | None = None

    def __post_init__(self) -> None:
        if self.rank is None:
            self._refuse_idle()
        elif self.rank < 1:
            raise ValueError(f"rank={self.rank}: must be at least 1, or null for no LoRA")
        if self.alpha is not None and not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha={self.alpha}: must be above 0 and finite")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout}: must be at least 0 and below 1")
        if self.targets is not None:
            _check_targets(self.targets)

    def _refuse_idle(self) -> None:
        """Without a rank nothing else may be set: it would do nothing."""
        idle = {"alpha": self.alpha, "dropout": self.dropout or None, "targets": self.targets}
        for name, value in idle.items():
            if value is not None:
                shown = _listed(value) if isinstance(value, list) else value
                raise ValueError(
                    f"{name}={shown}: does nothing without LoRA, and lora.rank is null; set "
                    f"lora.rank, as lora=default does, or remove it"
                )

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        assert self.rank is not None
        return self.resolved_alpha / self.rank

    @property
    def resolved_alpha(self) -> float:
        """``alpha``, or what stands for null."""
        assert self.rank is not None
        return 2.0 * self.rank if self.alpha is None else self.alpha

    @property
    def matrices(self) -> tuple[str, ...]:
        """The target matrices, each by its own name, in the order of a layer."""
        named = {m for t in self.targets or ["all"] for m in _SHORTHANDS.get(t, (t,))}
        return tuple(m for m in ATTENTION + MLP if m in named)

    def parameter_count(self, shape: GPTShape) -> int:
        """Weights in all the A and B of a model; 0 without LoRA."""
        if self.rank is None:
            return 0
        sizes = projections(shape)
        return shape.num_layers * sum(self.rank * sum(sizes[m]) for m in self.matrices)


def projections(shape: GPTShape) -> dict[str, tuple[int, int]]:
    """Input and output channels of each matrix of a layer that LoRA can adapt."""
    hidden, wide = shape.hidden_size, shape.ffn_hidden_size
    query = shape.num_attention_heads * shape.channels_per_head
    key = shape.num_query_groups * shape.channels_per_head
    return {
        "q_proj": (hidden, query),
        "k_proj": (hidden, key),
        "v_proj": (hidden, key),
        "o_proj": (query, hidden),
        "gate_proj": (hidden, wide),
        "up_proj": (hidden, wide),
        "down_proj": (wide, hidden),
    }


def _check_targets(targets: list[str]) -> None:
    known = [*_SHORTHANDS["all"], *_SHORTHANDS]
    shown = f"targets={_listed(targets)}"
    if not targets:
        raise ValueError(f"{shown}: must name a matrix; use {', '.join(known)}, or null for all")
    seen: set[str] = set()
    for target in targets:
        if target not in known:
            close = difflib.get_close_matches(target.lower(), known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ValueError(f"{shown}: there is no {target}.{hint} Use {', '.join(known)}")
        for matrix in _SHORTHANDS.get(target, (target,)):
            if matrix in seen:
                raise ValueError(f"{shown}: names {matrix} twice; name it once")
            seen.add(matrix)


def _listed(values: list[str]) -> str:
    return f"[{', '.join(values)}]"
