"""From the settings to what makes samples of raw lines."""

from __future__ import annotations

from data.chat import ConversationEncoder
from data.formats import Parser
from sft.checks import Derived
from sft.config import RunConfig


def build_encoder(config: RunConfig, derived: Derived) -> ConversationEncoder:
    """The encoder of a run; a preview and ``data.show`` use the same."""
    return ConversationEncoder(
        parser=Parser(config.data.format, config.data.columns or {}),
        tokenizer=derived.tokenizer,
        capacity=config.packing.capacity,
        overlong=config.data.overlong,
        loss_on=config.data.loss_on,
    )
