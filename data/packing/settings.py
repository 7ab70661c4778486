"""Who packs, and into what: the ``packing`` group. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class PackingMode(Enum):
    """Who decides which samples share a row, and when."""

    NONE = "none"
    TRAINER = "trainer"
    LOADER = "loader"


class KernelBoundaries(Enum):
    """Which boundaries the attention kernel gets as ``cu_seqlens``."""

    PADDED = "padded"
    REAL = "real"


@dataclass(frozen=True, kw_only=True)
class PackingSettings:
    """The ``packing`` group.

    Attributes:
        mode: who packs.
        capacity: tokens; the widest row, and the longest sample.
        pad_multiple: tokens; every sample's padded length and every row's width is a multiple of
            it. None: what the parallel layout and the precision need.
        buffer_size: samples the loader collects before it packs them (``loader`` only). None:
            256.
        level_window: optimizer steps whose rows are shared out anew among them, so that those of
            one step cost alike and no rank waits for another (``loader`` only). None: 1, each step
            keeps the rows that came.
        kernel_boundaries: None: ``padded`` for the loader's rows, ``real`` for the trainer's.
    """

    mode: PackingMode
    capacity: int
    pad_multiple: int | None = None
    buffer_size: int | None = None
    level_window: int | None = None
    kernel_boundaries: KernelBoundaries | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("capacity", 2),
            ("pad_multiple", 1),
            ("buffer_size", 1),
            ("level_window", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value}: must be at least {least}")
        if self.buffer_size is not None and self.mode is not PackingMode.LOADER:
            raise ValueError(
                f"buffer_size={self.buffer_size}: only the loader buffers samples, and "
                f"packing.mode is {self.mode.value}; remove it or use packing=loader"
            )
        if self.level_window is not None and self.mode is not PackingMode.LOADER:
            raise ValueError(
                f"level_window={self.level_window}: only the loader's rows are made before it is "
                f"known which step they are for, and packing.mode is {self.mode.value}; remove it "
                "or use packing=loader"
            )
        if self.kernel_boundaries is not None and self.mode is PackingMode.NONE:
            raise ValueError(
                f"kernel_boundaries={self.kernel_boundaries.value}: rows that are not packed have "
                "no boundaries; remove it or use packing=trainer or packing=loader"
            )

    @property
    def loader_buffer_size(self) -> int:
        """Samples the loader collects before it packs them."""
        return self.buffer_size or 256

    @property
    def real_boundaries(self) -> bool:
        """Whether the kernel is handed the real boundaries beside the padded ones."""
        if self.kernel_boundaries is None:
            return self.mode is PackingMode.TRAINER
        return self.kernel_boundaries is KernelBoundaries.REAL
