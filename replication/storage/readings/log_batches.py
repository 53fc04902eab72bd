"""The batch headers of a broker's log, from the footers of its files: no record is read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.broken_segments import BrokenSegment, read_segments
from lakelog.replication.storage.log.segment import Segment
from lakelog.replication.storage.readings.past_version import table_at
from lakelog.schemas import LOG
from lakelog.schemas.views.readings import BATCHES

_OF_HEADER = ("topic", "topic_id", "partition", "leader_epoch", "base_offset", "last_offset", "max_timestamp", "bytes",
              "producer_id")  # fmt: skip


def log_batches(broker: StorageRoot, broker_id: int, at: float | None, observed_at: float) -> pa.Table:
    """A row a batch of a broker's log, and a row a file without batches or that cannot be read; columns of `BATCHES`.
    `at`: as for `table_at`.

    Raises InconsistentClusterIdException if there is no log, KafkaStorageException.
    """
    root = broker.child(LOG.name)
    segments = read_segments(root, table_at(root, at).log.active_files())
    common = {"broker_id": broker_id, "observed_at": int(observed_at * 1e6)}
    rows = [{**common, **row} for segment in segments for row in _rows(segment)]
    return pa.Table.from_pylist(rows, BATCHES.arrow)


def _rows(segment: Segment | BrokenSegment) -> list[dict[str, Any]]:
    file = {"file": segment.file.name, "file_bytes": segment.file.size}
    if isinstance(segment, BrokenSegment):
        return [{**file, "error": segment.fault}]
    return [{**file, **_header(header)} for header in segment.headers] or [file]


def _header(header: BatchHeader) -> dict[str, Any]:
    return {name: getattr(header, name) for name in _OF_HEADER}
