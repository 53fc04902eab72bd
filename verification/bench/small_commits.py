"""Commits a few records to each of several partitions, as a producer does."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence

import pyarrow as pa

from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.append import AppendPosition, PartitionAppend
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.storage.log.log_append import append
from lakelog.replication.storage.log.new_batches import ArrowRecords, write_batches
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import Segment
from lakelog.schemas import LOG

_SEGMENT_BYTES = Config().log_segment_bytes
_COLUMNS = pa.schema([LOG.arrow.field(name) for name in ("key", "value", "timestamp", "headers")])


class SmallCommits:
    """An idempotent producer on one log."""

    def __init__(
        self, log: ReplicaLog, partitions: Sequence[TopicIdPartition], records: int, topic: str = "bench"
    ) -> None:  # fmt: skip
        self._log = log
        self._topic = topic
        self._partitions = tuple(partitions)
        self._each = records
        self._made = 0

    @property
    def records(self) -> int:
        """The number of committed records."""
        return self._made * self._each * len(self._partitions)

    def ends(self) -> dict[TopicIdPartition, int]:
        """The log end offset of each partition."""
        return dict.fromkeys(self._partitions, self._made * self._each)

    def make(self, files: int = 1) -> float:
        """Writes `files` segments and commits them. Returns the seconds that it took."""
        now = dt.datetime.now(dt.UTC)  # retention would delete older records
        row = {"key": b"key", "value": str(self._made).encode() * 10, "timestamp": now, "headers": None}
        table = pa.Table.from_pylist([row] * self._each, _COLUMNS)
        started = time.perf_counter()
        segments: list[Segment] = []
        state = self._log.refresh()
        ends = {partition: state.partition(partition).log_end for partition in self._partitions}
        for number in range(files):
            requests = self._requests(self._made + number, 1)
            records = {partition: [ArrowRecords(table)] for partition in self._partitions}
            positions = {p: AppendPosition(end.offset, chain=end.chain) for p, end in ends.items()}
            segments += write_batches(self._log.root, 1, requests, records, _SEGMENT_BYTES, positions)
            ends = {h.topic_id_partition: LogEnd(h.next_offset, h.chain) for h in segments[-1].headers}
        for outcome in append(
            self._log, self._requests(self._made, files), lambda _: segments, lambda *_: (), "bench"
        ).values():
            if isinstance(outcome, LakelogException):
                raise outcome
        self._made += files
        return time.perf_counter() - started

    def _requests(self, made: int, files: int) -> list[PartitionAppend]:
        records, sequence = files * self._each, made * self._each
        return [PartitionAppend(self._topic, *p, (1, 2), 0, records, 1, 0, sequence) for p in self._partitions]
