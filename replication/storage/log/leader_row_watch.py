"""Finds the last change of a leader's rows in `replicas`. Such a change wakes the followers, as new records do."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.storage.delta.commit_reader import read_commit
from lakelog.replication.storage.delta.known_commits import KnownCommits
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment_name import is_data_file

# A follower must act on a new role, epoch, lineage or log start at once. A new high watermark can wait.
_URGENT = ("topic_id", "partition", "leader_epoch", "log_start_offset", "epochs")
_COLUMNS = ["role", "high_watermark", *_URGENT]

_Facts = list[dict[str, Any]]


class LeaderRowWatch:
    """Watches the `replicas` table of a leader. Its rows as a follower wake nobody."""

    def __init__(self, table: StorageRoot, wait_max: float) -> None:
        self._table = table
        self._commits = KnownCommits(table)
        self._wait_max = wait_max
        self._version = -1
        self._seen: _Facts | None = None
        self._told: _Facts | None = None
        self._waiting_since: float | None = None

    def changed_at(self, known: int, tell_all: bool) -> int:
        """The version of the last change since version `known`, or `known` if there is nothing to report.

        A new high watermark alone waits up to `wait_max` seconds, unless `tell_all`: then records are reported with it.
        """
        newest = self._commits.newest(max(known, self._version))
        if newest != self._version:
            self._version, self._seen = newest, self._read(newest)
        if self._seen is not None and self._seen == self._told:
            self._waiting_since = None
            return known
        if not (tell_all or self._is_urgent() or self._has_waited()):
            return known
        self._told, self._waiting_since = self._seen, None
        return max(known, newest)

    def _is_urgent(self) -> bool:
        if self._seen is None or self._told is None:
            return True
        return [_urgent(row) for row in self._seen] != [_urgent(row) for row in self._told]

    def _has_waited(self) -> bool:
        now = time.monotonic()
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        return now - self._waiting_since >= self._wait_max

    def _read(self, version: int) -> _Facts | None:
        """The leader rows of a version; None if the version is gone already."""
        try:
            names = [file.name for file in read_commit(self._table, version).adds if is_data_file(file.name)]
            files = [pa.BufferReader(self._table.read_buffer(name)) for name in names]
            tables = [pq.read_table(file, columns=_COLUMNS) for file in files]
        except (KafkaStorageException, CorruptRecordException, OSError, pa.ArrowInvalid):
            return None
        return [row for table in tables for row in table.to_pylist() if row["role"] == "leader"]


def _urgent(row: dict[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in _URGENT)
