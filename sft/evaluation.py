"""How validation is packed: the ``eval`` section together with ``packing``. No torch here."""

from __future__ import annotations

from dataclasses import replace

from data.packing.settings import PackingMode, PackingSettings
from sft.config import RunConfig
from sft.errors import ConfigError


def evaluation_packing(config: RunConfig) -> PackingSettings:
    """The ``packing`` of validation: that of training, by whoever ``eval.packing`` says."""
    training = config.packing
    mode = config.eval.packing or training.mode
    return replace(
        training,
        mode=mode,
        buffer_size=training.buffer_size if mode is PackingMode.LOADER else None,
        level_window=None,  # every conversation counts, in whatever order
        kernel_boundaries=None if mode is PackingMode.NONE else training.kernel_boundaries,
    )


def check_eval(config: RunConfig) -> None:
    """Refuse ``eval`` where it does not fit who packs validation.

    Raises:
        ConfigError: a number of conversations per rectangle, and there are no rectangles.
    """
    size, mode = config.eval.micro_batch_size, evaluation_packing(config).mode
    if size is not None and mode is not PackingMode.NONE:
        by = "packing.mode" if config.eval.packing is None else "eval.packing"
        raise ConfigError(
            f"eval.micro_batch_size={size}: a packed row is its own microbatch, and validation is "
            f"packed ({by}={mode.value}); remove it, or use eval.packing=none"
        )
