"""The lengths of the training samples: by tokenising conversations, or from a file of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data.accounting import Accounting
from data.chat import ConversationEncoder, Overlong
from data.errors import DataError
from data.jsonl import Records
from data.sample import Sample
from data.windows import Share
from sft.checks import Derived
from sft.config import RunConfig
from sft.encoder import build_encoder
from sft.errors import ConfigError

type Integers = npt.NDArray[np.int64]

_CHUNK = 1000  # conversations that a process tokenises at a time
_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Lengths:
    """The training conversations as a run would see them.

    Attributes:
        source: where they come from, for people.
        tokens: int64 ``[conversations]``, as long as they are in a row; 0 where one is dropped.
        accounting: of one pass over them.
        loss_share: of the real tokens, those that count in the loss; None where it is not known.
        shares: how often they come in an epoch, as ``Records.shares`` has it.
    """

    source: str
    tokens: Integers
    accounting: Accounting
    loss_share: float | None
    shares: tuple[Share, ...] = ()

    @property
    def kept(self) -> Integers:
        """Of the conversations that are trained on."""
        return self.tokens[self.tokens > 0]

    @property
    def overlong_share(self) -> float:
        """Share of the conversations that are longer than the capacity."""
        dropped = self.accounting.dropped
        cut = dropped.get("over the capacity", 0) + dropped.get("no answer within the capacity", 0)
        return (self.accounting.truncated_samples + cut) / self.accounting.read


def of_conversations(config: RunConfig, derived: Derived) -> Lengths:
    """Tokenise the training conversations, as a run does.

    Raises:
        ConfigError: the data is not there.
        DataError: it is there and cannot be used.
    """
    try:
        data = config.data.prepare()
    except DataError as error:
        raise ConfigError(str(error)) from error
    encode = build_encoder(config, derived)
    tokens, accounting = _measure(data.train, encode, config.data.num_workers)
    _refuse_none_kept(accounting)
    return Lengths(
        source=data.name,
        tokens=tokens,
        accounting=accounting,
        loss_share=accounting.loss_tokens / accounting.real_tokens,
        shares=data.train.shares,
    )


def of_file(path: Path, config: RunConfig) -> Lengths:
    """Take numbers as the token counts of conversations; what is too long is dealt with as set.

    Raises:
        ConfigError: the file is missing or holds something else.
        DataError: a conversation is too long and ``data.overlong`` is ``error``.
    """
    tokens = _read(path)
    capacity, accounting = config.packing.capacity, Accounting(read=tokens.size)
    longer = np.flatnonzero(tokens > capacity)
    if longer.size and config.data.overlong is Overlong.ERROR:
        at = int(longer[0])
        raise DataError(
            f"{path.name}:{at + 1}: this conversation has {tokens[at]:,} tokens, over the capacity "
            f"of {capacity:,}. Raise packing.capacity, or set data.overlong=truncate or "
            "data.overlong=drop"
        )
    if longer.size and config.data.overlong is Overlong.DROP:
        accounting.dropped = {"over the capacity": longer.size}
        examples = [f"{path.name}:{i + 1}" for i in longer[:_EXAMPLES].tolist()]
        accounting.examples = {"over the capacity": examples}
        tokens = np.where(tokens > capacity, 0, tokens)
    else:
        accounting.truncated_samples = longer.size
        accounting.truncated_tokens = int((tokens[longer] - capacity).sum())
        tokens = np.minimum(tokens, capacity)
    accounting.kept = tokens.size - accounting.dropped_total
    accounting.real_tokens = int(tokens.sum())
    _refuse_none_kept(accounting)
    return Lengths(source=path.name, tokens=tokens, accounting=accounting, loss_share=None)


def _read(path: Path) -> Integers:
    wanted = f"lengths={path}: must be a .npy file of integers [n], or text with one on each line"
    try:
        if path.suffix == ".npy":
            tokens = np.load(path, allow_pickle=False)
        else:
            tokens = np.loadtxt(path, dtype=np.int64, ndmin=1)
    except FileNotFoundError:
        raise ConfigError(f"lengths={path}: does not exist") from None
    except OSError as error:
        raise ConfigError(f"lengths={path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, EOFError) as error:
        raise ConfigError(wanted) from error
    if not isinstance(tokens, np.ndarray) or tokens.dtype.kind not in "iu" or tokens.ndim != 1:
        raise ConfigError(wanted)
    if not tokens.size:
        raise ConfigError(f"lengths={path}: holds no lengths")
    if tokens.min() < 1:
        at = int(tokens.argmin())
        raise ConfigError(f"lengths={path}: must be 1 or more, and number {at + 1} is {tokens[at]}")
    return tokens.astype(np.int64)


def _measure(
    records: Records, encode: ConversationEncoder, workers: int
) -> tuple[Integers, Accounting]:
    """Tokens of each conversation, 0 where it is dropped, and what became of them."""
    spans = [(i, min(i + _CHUNK, len(records))) for i in range(0, len(records), _CHUNK)]
    accounting = Accounting()
    parts = []
    for tokens, part in _measured(records, encode, spans, min(workers, len(spans))):
        parts.append(tokens)
        accounting.merge(part)
    return np.concatenate(parts), accounting


def _measured(
    records: Records, encode: ConversationEncoder, spans: list[tuple[int, int]], workers: int
) -> Iterator[tuple[Integers, Accounting]]:
    if workers <= 1:
        _open(records, encode)
        yield from map(_measure_span, spans)
        return
    pool = ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=_open, initargs=(records, encode)
    )
    with pool:
        yield from pool.map(_measure_span, spans)


_opened: tuple[Records, ConversationEncoder] | None = None  # of this process


def _open(records: Records, encode: ConversationEncoder) -> None:
    global _opened
    _opened = (records, encode)


def _measure_span(span: tuple[int, int]) -> tuple[Integers, Accounting]:
    assert _opened is not None
    records, encode = _opened
    tokens = np.zeros(span[1] - span[0], dtype=np.int64)
    accounting = Accounting()
    for at, i in enumerate(range(*span)):
        outcome = encode(records.read(i), records.source_id(i))
        accounting.add(outcome)
        if isinstance(outcome, Sample):
            tokens[at] = len(outcome)
    return tokens, accounting


def _refuse_none_kept(accounting: Accounting) -> None:
    if not accounting.kept:
        raise DataError(
            f"none of the {accounting.read:,} conversations can be used: {accounting.describe()}. "
            "Look at the lines named, or change data.overlong or packing.capacity"
        )
