"""What ``lora`` needs of the other settings. No torch here."""

from __future__ import annotations

import logging

from sft.config import RunConfig

_log = logging.getLogger(__name__)


def check_lora(config: RunConfig) -> None:
    """Warn where LoRA would adapt a model that has learned nothing."""
    if config.lora.rank is not None and config.model.init_from is None:
        _log.warning(
            "lora.rank=%d: model.init_from is null, so random weights are frozen and only adapters "
            "to them are trained; set model.init_from, or lora=none to train every weight",
            config.lora.rank,
        )
