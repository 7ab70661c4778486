"""How the rotary frequencies of a model were stretched to a longer context. No torch until used.

Rotary positions turn pair ``i`` of a head's d channels by ``position * base^(-2i/d)``. A model that
was trained on short sequences reads longer ones if its frequencies are lowered; the classes here
are the ways to do it that published models use. Their constants are the model's: with others than
it was trained with it reads nonsense.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RopeScaling(ABC):
    """A way to lower rotary frequencies.

    Attributes:
        factor: how much longer the context became.
    """

    factor: float

    def __post_init__(self) -> None:
        _above_zero(self, "factor")

    @property
    def attention(self) -> float:
        """What queries and keys are multiplied with on top, each."""
        return 1.0

    @abstractmethod
    def scale(self, frequencies: Tensor, base: float) -> Tensor:
        """The lowered frequencies.

        Args:
            frequencies: float32 ``[d / 2]``, in radians per position, falling.
            base: of those frequencies.

        Returns:
            float32 ``[d / 2]``.
        """


@dataclass(frozen=True, kw_only=True)
class LinearScaling(RopeScaling):
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595): every frequency alike."""

    def scale(self, frequencies: Tensor, base: float) -> Tensor:
        """Divide all by the factor."""
        return frequencies / self.factor


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling(RopeScaling):
    """Llama 3.1's (``apply_scaling`` of meta-llama/llama-models): long wavelengths only.

    Attributes:
        low_freq_factor: wavelengths over ``original_context_length / low_freq_factor`` get the
            whole factor.
        high_freq_factor: those below ``original_context_length / high_freq_factor`` stay as they
            are. Between the two it is a blend.
        original_context_length: tokens; the context before it was stretched.
    """

    low_freq_factor: float
    high_freq_factor: float
    original_context_length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("low_freq_factor", "original_context_length"):
            _above_zero(self, name)
        if not self.high_freq_factor > self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor={self.high_freq_factor}: must be above "
                f"low_freq_factor={self.low_freq_factor}"
            )

    def scale(self, frequencies: Tensor, base: float) -> Tensor:
        """Divide by the factor where the original context holds few turns."""
        turns = self.original_context_length * frequencies / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return _blend(frequencies, frequencies / self.factor, kept.clamp(0, 1))


@dataclass(frozen=True, kw_only=True)
class YarnScaling(RopeScaling):
    """YaRN (Peng et al. 2023, arXiv:2309.00071): a ramp over the channels, and sharper attention.

    Attributes:
        original_context_length: tokens; the context before it was stretched.
        attention_factor: what queries and keys are multiplied with; None: the paper's
            ``0.1 ln(factor) + 1``.
        beta_fast: channels that turn more often than this within the original context stay.
        beta_slow: those that turn less often get the whole factor.
        truncate: whether the ramp starts and ends at whole channels, as the authors' code has it.
    """

    original_context_length: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("original_context_length", "beta_slow"):
            _above_zero(self, name)
        if self.attention_factor is not None:
            _above_zero(self, "attention_factor")
        if not self.beta_fast > self.beta_slow:
            raise ValueError(
                f"beta_fast={self.beta_fast}: must be above beta_slow={self.beta_slow}"
            )

    @property
    def attention(self) -> float:
        """What queries and keys are multiplied with on top, each."""
        if self.attention_factor is not None:
            return self.attention_factor
        return yarn_attention(self.factor)

    def scale(self, frequencies: Tensor, base: float) -> Tensor:
        """Divide by the factor where a channel turns seldom, with a linear ramp over channels."""
        import torch

        pairs = frequencies.numel()
        low = self._channel(self.beta_fast, base, 2 * pairs)
        high = self._channel(self.beta_slow, base, 2 * pairs)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        if low == high:
            high += 0.001  # a ramp of no width
        channels = torch.arange(pairs, dtype=torch.float32, device=frequencies.device)
        ramp = ((channels - low) / (high - low)).clamp(0, 1)
        return _blend(frequencies, frequencies / self.factor, 1 - ramp)

    def _channel(self, turns: float, base: float, channels: int) -> float:
        """The pair, as a fraction, that turns so often within the original context."""
        wavelength = self.original_context_length / turns
        return channels * math.log(wavelength / (2 * math.pi)) / (2 * math.log(base))


def yarn_attention(factor: float, weight: float = 1.0) -> float:
    """YaRN's attention factor (section 3.4 of the paper): 1 where nothing was stretched."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _blend(kept: Tensor, lowered: Tensor, share: Tensor) -> Tensor:
    return (1 - share) * lowered + share * kept


def _above_zero(settings: RopeScaling, name: str) -> None:
    if not getattr(settings, name) > 0:
        raise ValueError(f"{name}={getattr(settings, name)}: must be above 0")
