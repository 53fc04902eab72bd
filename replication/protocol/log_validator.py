"""What a batch header must be, to be believed: it was written by somebody who may not know the rules.

Kafka: `LogValidator`, `DefaultRecordBatch.ensureValid`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.chain import check_link
from lakelog.replication.protocol.record_batch import BatchHeader

_INT32, _INT64 = 2**31 - 1, 2**63 - 1

# Number -> the least and the greatest that it may be. A next offset must be a number too.
_RANGES: Final = {
    "partition": (0, _INT32),
    "leader_epoch": (0, _INT32),
    "base_offset": (0, _INT64 - 1),
    "last_offset": (0, _INT64 - 1),
    "max_timestamp": (-_INT64 - 1, _INT64),
    "bytes": (0, _INT64),
    "producer_id": (-1, _INT64),
    "producer_epoch": (-1, _INT32),
    "base_sequence": (-1, _INT32),
}


def validate_headers(headers: Sequence[BatchHeader], rows: int) -> None:
    """The headers of one file of so many rows: possible values, a chain of their own, no offset twice, and a
    row for every record.

    Raises:
        CorruptRecordException: a header makes no sense, or they do not fit together.
    """
    for header in headers:
        _validate(header)
        check_link(header)
    _check_no_overlap(headers)
    records = sum(header.records for header in headers)
    if records != rows:
        raise CorruptRecordException(f"its headers are of {records} records, and it has {rows} rows")


def _validate(header: BatchHeader) -> None:
    for name in ("topic", "topic_id", "digest", "previous", "chain"):
        value = getattr(header, name)
        if not isinstance(value, str) or not value:
            raise CorruptRecordException(f"a header has {name} {value!r}, which is none")
    for name, (least, most) in _RANGES.items():
        value = getattr(header, name)
        if type(value) is not int or not least <= value <= most:
            raise CorruptRecordException(f"a header has {name} {value!r}, which is not within {least} and {most}")
    if header.last_offset < header.base_offset:
        raise CorruptRecordException(f"a header has offsets {header.base_offset} to {header.last_offset}")


def _check_no_overlap(headers: Iterable[BatchHeader]) -> None:
    ends: dict[tuple[str, int], int] = {}
    for header in sorted(headers, key=lambda header: header.base_offset):
        if header.base_offset < ends.get(header.topic_id_partition, 0):
            raise CorruptRecordException(f"{header.name} has offset {header.base_offset} twice")
        ends[header.topic_id_partition] = header.next_offset
