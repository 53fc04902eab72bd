"""Checks the batch headers of a file. Another program may have written them, so every field is checked.

Kafka: `LogValidator`, `DefaultRecordBatch.ensureValid`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.chain import check_link
from lakelog.replication.protocol.record_batch import BatchHeader

_INT32, _INT64 = 2**31 - 1, 2**63 - 1

# Field -> its least and greatest value. Offsets stay one below the maximum, so that the next offset fits too.
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
    """Checks the headers of a file with `rows` rows: valid fields and chains, no offset twice, one row a record.

    Raises:
        CorruptRecordException: a header is invalid, or the headers do not fit together or to the rows.
    """
    for header in headers:
        _validate(header)
        check_link(header)
    _check_no_overlap(headers)
    records = sum(header.retained.records for header in headers)
    if records != rows:
        raise CorruptRecordException(f"its headers describe {records} records, but it has {rows} rows")


def _validate(header: BatchHeader) -> None:
    for name in ("topic", "topic_id", "digest", "previous", "chain"):
        value = getattr(header, name)
        if not isinstance(value, str) or not value:
            raise CorruptRecordException(f"a header has {name} {value!r}, it must be a non-empty string")
    for name, (least, most) in _RANGES.items():
        value = getattr(header, name)
        if type(value) is not int or not least <= value <= most:
            raise CorruptRecordException(f"a header has {name} {value!r}, it must be {least} to {most}")
    if header.last_offset < header.base_offset:
        raise CorruptRecordException(f"a header has offsets {header.base_offset} to {header.last_offset}")
    if header.cleaned:
        _validate_cleaned(header, *header.cleaned)


def _validate_cleaned(header: BatchHeader, records: object, size: object, digest: object, horizon: object) -> None:
    """Other fields than these four are an error before. A batch may be larger than its header says, by none."""
    limits = {
        "records": (records, 0, header.records),
        "bytes": (size, 0, header.bytes),
        "horizon": (horizon, -1, _INT64),
    }
    for name, (value, least, most) in limits.items():
        if type(value) is not int or not least <= value <= most:
            raise CorruptRecordException(f"a header has {name} {value!r} after cleaning, it must be {least} to {most}")
    if not isinstance(digest, str) or not digest:
        raise CorruptRecordException(f"a header has digest {digest!r} after cleaning, it must be a non-empty string")


def _check_no_overlap(headers: Iterable[BatchHeader]) -> None:
    ends: dict[tuple[str, int], int] = {}
    for header in sorted(headers, key=lambda header: header.base_offset):
        if header.base_offset < ends.get(header.topic_id_partition, 0):
            raise CorruptRecordException(f"{header.name} has offset {header.base_offset} twice")
        ends[header.topic_id_partition] = header.next_offset
