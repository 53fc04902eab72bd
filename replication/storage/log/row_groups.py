"""The row groups of a segment. A reader of one partition, or of the end of a log, reads only those with its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

LEAST_BYTES = 1 << 20
_MOST_BYTES = 4 << 20


class SizedBatch(Protocol):
    """A batch of which the number of records and the bytes of their keys and values are known."""

    @property
    def records(self) -> int:
        """Number of records."""

    @property
    def bytes(self) -> int:
        """Bytes of keys and values."""


def row_groups(headers: Sequence[SizedBatch], total: int) -> list[int]:
    """The number of rows of each row group, for batches in this order that have `total` rows.

    A row group ends with a batch once it has 1 MiB of keys and values, so that a partition with many records shares it
    with few others. A larger one is split into equal parts of at most 4 MiB: the last records of a log are read without
    those before them. With row groups of 1 MB a segment would take a sixth more time to write and to read.
    """
    groups, rows, size = list[int](), 0, 0
    for header in headers:
        if rows and size + header.bytes > _MOST_BYTES:
            groups += _split(rows, size)
            rows = size = 0
        rows, size = rows + header.records, size + header.bytes
        if size >= LEAST_BYTES:
            groups += _split(rows, size)
            rows = size = 0
    return groups + _split(total - sum(groups), size)


def _split(rows: int, size: int) -> list[int]:
    parts = min(rows, max(1, -(-size // _MOST_BYTES)))
    return [rows * (n + 1) // parts - rows * n // parts for n in range(parts)]
