"""The samples to show: the first that training would read, or the first that it would not use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from data.accounting import Accounting
from data.chat import ConversationEncoder, Dropped
from data.conversation import BadRecord
from data.errors import DataError
from data.jsonl import Records
from data.sample import Sample
from data.windows import WindowOrder


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A conversation that is dropped.

    Attributes:
        dropped: where it is, and why it is dropped.
        detail: what was said about this one; may be empty.
        line: the record, as far as it is text.
    """

    dropped: Dropped
    detail: str
    line: str


@dataclass(kw_only=True)
class Gathered:
    """What was found.

    Attributes:
        samples: as they are trained on.
        failures: the conversations that are not.
        accounting: of all that were looked at.
    """

    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    accounting: Accounting = field(default_factory=Accounting)


def gather(
    records: Records, encode: ConversationEncoder, order: WindowOrder, n: int, *, failed: bool
) -> Gathered:
    """Read conversations until ``n`` are found, or there are no more.

    Args:
        records: the training conversations.
        encode: from line to sample.
        order: of one epoch.
        n: how many.
        failed: look for dropped conversations; else for samples.
    """
    found = Gathered()
    for row in _rows(order):
        line, source_id = records.read(row), records.source_id(row)
        try:
            outcome = encode(line, source_id)
        except DataError as error:
            outcome = Dropped(source_id, "refused")
            found.failures.append(_failure(outcome, str(error), line))
        else:
            if isinstance(outcome, Dropped):
                found.failures.append(_failure(outcome, _detail(encode, line), line))
            else:
                found.samples.append(outcome)
        found.accounting.add(outcome)
        if len(found.failures if failed else found.samples) >= n:
            break
    return found


def _rows(order: WindowOrder) -> Iterator[int]:
    for _, rows in order.windows():
        yield from rows.tolist()


def _detail(encode: ConversationEncoder, line: bytes) -> str:
    try:
        encode.render(line)
    except BadRecord as bad:
        return str(getattr(bad, "detail", ""))
    return ""


def _failure(dropped: Dropped, detail: str, line: bytes) -> Failure:
    return Failure(dropped=dropped, detail=detail, line=line.decode(errors="replace"))
