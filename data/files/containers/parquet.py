"""Parquet: each row is a record, its columns the record's keys. Rows are numbered from 1."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

from data import notes
from data.files.base import Container, Damaged, Row, Unusable

_BATCH = 1024  # rows that are in memory at a time
_NO_PARQUET = "not a Parquet file, or its end is damaged"
_DAMAGED = "a part of a Parquet file is damaged"
_NO_JSON = "a value has no JSON form"


class Parquet(Container):
    """See the module."""

    suffixes = (".parquet",)

    def rows(self, stream: io.BufferedReader) -> Iterator[Row]:
        """Every row. A row group with damage ends where it is met; the next is read again."""
        try:
            import pyarrow as pa  # type: ignore[import-untyped]
            import pyarrow.parquet as pq  # type: ignore[import-untyped]
        except ImportError:
            raise Unusable("it needs the package pyarrow: pip install pyarrow") from None

        errors = (pa.ArrowException, OSError, ValueError)
        try:
            file = pq.ParquetFile(stream, page_checksum_verification=True)
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        except errors:
            raise Damaged(_NO_PARQUET) from None
        start = 1
        for group, size in enumerate(sizes):
            number = start
            try:
                batches = file.iter_batches(_BATCH, row_groups=[group], use_threads=False)
                for batch in _until(batches, errors):
                    for line in _lines(batch):
                        yield Row(number, line)
                        number += 1
            except Damaged as damage:
                # One row for all that are lost: how many there were is part of what is damaged.
                yield Row(number, notes.damaged(damage.reason))
            start += size


def _until(batches: Iterator[Any], errors: tuple[type[Exception], ...]) -> Iterator[Any]:
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except errors:
            raise Damaged(_DAMAGED) from None
        yield batch


def _lines(batch: Any) -> Iterator[bytes]:
    """The rows of a batch as JSON."""
    try:
        rows = batch.to_pylist(maps_as_pydicts="lossy")
    except Exception:  # pyarrow converts a whole batch or none of it, so one by one
        for i in range(batch.num_rows):
            yield _line_alone(batch.slice(i, 1))
        return
    yield from map(_line, rows)


def _line_alone(row: Any) -> bytes:
    try:
        (values,) = row.to_pylist(maps_as_pydicts="lossy")
    except UnicodeDecodeError:
        return notes.damaged("text is not valid Unicode")
    except (ValueError, OverflowError, ArithmeticError, TypeError, KeyError):
        return notes.damaged(_NO_JSON)
    return _line(values)


def _line(values: Any) -> bytes:
    try:
        return json.dumps(values, default=_json_form).encode()
    except (TypeError, ValueError, RecursionError):
        return notes.damaged(_NO_JSON)


def _json_form(value: Any) -> str:
    if isinstance(value, bytes):
        # As text where it is text. Where it is not, whoever reads it as text will notice.
        return value.decode("utf-8", "surrogateescape")
    return str(value)  # dates, times, decimals
