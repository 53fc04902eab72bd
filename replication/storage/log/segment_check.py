"""Checks the footer of a segment: its batch headers, and the statistics that the commit gets from it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lakelog.replication.protocol.log_validator import validate_headers
from lakelog.replication.protocol.record_batch import BatchHeader


def check_footer(headers: Sequence[BatchHeader], stats: str, rows: int) -> None:
    """Raises CorruptRecordException or ValueError unless the headers are possible and the statistics match them.
    Readers skip files by statistics, so a wrong range would hide records."""
    validate_headers(headers, rows)
    told = json.loads(stats)
    if told["numRecords"] != rows:
        raise ValueError(f"its statistics count {told['numRecords']} records, but it has {rows} rows")
    if headers:
        _check_ranges(headers, told["minValues"], told["maxValues"])


def _check_ranges(headers: Sequence[BatchHeader], least: dict[str, object], most: dict[str, object]) -> None:
    for name in ("topic", "partition", "leader_epoch"):
        values = [getattr(header, name) for header in headers]
        _check_range(name, (least[name], most[name]), (min(values), max(values)))
    ends = min(header.base_offset for header in headers), max(header.last_offset for header in headers)
    _check_range("offset", (least["offset"], most["offset"]), ends)


def _check_range(name: str, told: tuple[object, object], true: tuple[object, object]) -> None:
    if told != true:
        raise ValueError(
            f"its statistics have {name} from {told[0]!r} to {told[1]!r}, its headers {true[0]!r} to {true[1]!r}"
        )
