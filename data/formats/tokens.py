"""Conversations that are tokens already: ``{"input_ids": [...], "labels": [...]}``.

``input_ids`` may be called ``tokens``. What is to be predicted is said by ``labels``, as long as
the ids and not shifted against them, -100 where nothing is; or by ``loss_mask`` or ``targets``, 1
where a token is to be predicted. Without any of these it is every token but the first, which has
nothing before it. Where there is an ``attention_mask``, what it leaves out is padding and goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from data.conversation import BadRecord, TokenRecord
from data.formats.base import Format

_NO_TARGET = -100
_MASKS = ("loss_mask", "targets")
_MOST = 2**31 - 1  # tokens are int32 later on


class Tokens(Format):
    """See the module."""

    keys = ("input_ids", "tokens", "labels", "loss_mask", "targets", "attention_mask")
    signatures = (frozenset({"input_ids"}), frozenset({"tokens"}))

    def parse(self, record: Mapping[str, Any]) -> TokenRecord:
        """Read a record."""
        given = [key for key in ("input_ids", "tokens") if record.get(key) is not None]
        if len(given) > 1:
            raise BadRecord("both input_ids and tokens")
        if not given:
            raise BadRecord("no input_ids key")
        ids = _integers(record[given[0]], "input_ids is not a list of integers")
        if not ids.size:
            raise BadRecord("input_ids is empty")
        if ids.min() < 0 or ids.max() > _MOST:
            raise BadRecord("a token id is out of range")
        targets = _targets(record, ids)
        if record.get("attention_mask") is not None:
            real = _mask(record["attention_mask"], "attention_mask", ids.size)
            ids, targets = ids[real], targets[real]
            if not ids.size:
                raise BadRecord("input_ids is empty")
        targets[0] = False  # nothing comes before it
        if not targets.any():
            raise BadRecord("no token is to be predicted")
        return TokenRecord(tokens=ids, targets=targets)


def _targets(record: Mapping[str, Any], ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    given = [key for key in ("labels", *_MASKS) if record.get(key) is not None]
    if len(given) > 1:
        raise BadRecord("more than one of labels, loss_mask and targets")
    if not given:
        return np.ones(ids.size, dtype=np.bool_)
    if given[0] in _MASKS:
        return _mask(record[given[0]], given[0], ids.size)
    labels = _integers(record["labels"], "labels is not a list of integers")
    if labels.size != ids.size:
        raise BadRecord("labels is not as long as input_ids")
    targets = np.not_equal(labels, _NO_TARGET, dtype=np.bool_)
    if (labels != ids)[targets].any():
        raise BadRecord("labels differ from input_ids")
    return targets


def _mask(value: Any, key: str, size: int) -> npt.NDArray[np.bool_]:
    if not isinstance(value, list) or not set(map(type, value)) <= {int, float, bool}:
        raise BadRecord(f"{key} is not a list of 0 and 1")
    if len(value) != size:
        raise BadRecord(f"{key} is not as long as input_ids")
    if not set(value) <= {0, 1}:
        raise BadRecord(f"{key} is not a list of 0 and 1")
    return np.array(value, dtype=np.bool_)


def _integers(value: Any, reason: str) -> npt.NDArray[np.int64]:
    # bool is an int to Python, and no token id.
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise BadRecord(reason)
    try:
        return np.array(value, dtype=np.int64)
    except OverflowError:
        raise BadRecord("a token id is out of range") from None
