"""Checks every row of every data file of every replica at the end of a test, independently of the producers."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.log.segment import read_records, rows_of
from lakelog.schemas import LOG
from lakelog.verification.faults.number_producer import AcknowledgedRecord, key_of

_PLACE = ("partition", "offset", "leader_epoch")
_ORDER = [("partition", "ascending"), ("offset", "ascending")]


class Findings(NamedTuple):
    """The number of records, and of each kind of fault. `different`: replicas that differ from their leaders.

    A contradiction: two logs have different records at one partition, offset and leader epoch. That must never happen,
    even while replicas differ, because truncation relies on this log matching property.
    """

    records: int
    lost: int
    duplicated: int
    offsets_missing_or_doubled: int
    contradictions: int
    different: int

    @property
    def is_good(self) -> bool:
        """Whether there are no faults."""
        return not any(self[1:])


def check_logs(view: TopicView, topic: str, acknowledged: Iterable[AcknowledgedRecord]) -> Findings:
    """Compares acknowledged records with the leaders' logs below the high watermark, and the replicas with each other.

    All partitions of the topic must have the same replicas, and each record a unique number.
    """
    return TopicLogs(view, topic).check(acknowledged)


class TopicLogs:
    """All rows of a topic from the log starts on, of each broker, and the leaders' high watermarks. `may_delete`: a
    replica may begin above its leader, after a deletion of records that was not confirmed. [DR-02] `is_compacted`: a
    record may have gone, on each broker, for a later one of its key. [LC-01]"""

    def __init__(self, view: TopicView, topic: str, may_delete: bool = False, is_compacted: bool = False) -> None:
        partitions = view.partitions(topic)
        ids = [registration.topic_id_partition for registration in partitions.values()]
        self.starts = {p: _log_start(view, r.leader, r.topic_id_partition) for p, r in partitions.items()}
        self._logs = {broker: _rows(view, broker, ids) for broker in partitions[0].replicas}
        own = {b: {p.partition: _log_start(view, b, p) for p in ids} for b in self._logs}
        self._compared_from = own if may_delete else dict.fromkeys(self._logs, self.starts)
        self._led = {p: _of(self._logs[r.leader], p) for p, r in partitions.items()}
        self._committed = _committed(self._led.values(), _high_watermarks(view, partitions))
        self._newest = _newest(self._led.values()) if is_compacted else {}

    def check(self, acknowledged: Iterable[AcknowledgedRecord]) -> Findings:
        """The faults in these logs, given the acknowledged records."""
        rows = pa.concat_tables(self._led.values())
        pairs = combinations(self._logs.values(), 2)
        return Findings(
            records=rows.num_rows,
            lost=self.missing(acknowledged),
            duplicated=doubled(rows["value"].to_pylist()),
            offsets_missing_or_doubled=sum(self._bad_offsets(p) for p in self._led),
            contradictions=sum(_contradictions(one, other) for one, other in pairs),
            different=sum(self._differs(broker, p) for p in self._led for broker in self._logs),
        )

    def _bad_offsets(self, partition: int) -> int:
        """The number of offsets that are repeated, or that are missing and must not be."""
        rows, start = self._led[partition], self.starts[partition]
        return doubled(rows["offset"].to_pylist()) if self._newest else _bad_offsets(rows, start)

    def _differs(self, broker: int, partition: int) -> bool:
        led = self._led[partition]
        if self._newest:
            return _newest([_of(self._logs[broker], partition)]) != _newest([led])
        expected = led.filter(pc.greater_equal(led["offset"], self._compared_from[broker][partition]))
        return not _of(self._logs[broker], partition).equals(expected)

    def missing(self, records: Iterable[AcknowledgedRecord]) -> int:
        """The number of these records that are not committed at their offsets. Records below the log start do not
        count, nor those for which there is a later one of their key in a compacted topic."""
        return sum(
            record.offset >= self.starts[record.partition]
            and self._committed.get((record.partition, record.offset)) != str(record.number).encode()
            and not self._is_obsolete(record)
            for record in records
        )

    def _is_obsolete(self, record: AcknowledgedRecord) -> bool:
        newest = self._newest.get((record.partition, key_of(record.number, len(self.starts))), -1)
        return (record.partition, record.offset) not in self._committed and record.offset < newest


def doubled(values: Iterable[object]) -> int:
    """The number of repeated values."""
    return sum(times - 1 for times in Counter(values).values())


def _log_start(view: TopicView, broker: int, partition: TopicIdPartition) -> int:
    return view.log(broker).refresh().partition(partition).log_start_offset


def _of(rows: pa.Table, partition: int) -> pa.Table:
    return rows.filter(pc.equal(rows["partition"], partition))


def _rows(view: TopicView, broker: int, partitions: Iterable[TopicIdPartition]) -> pa.Table:
    """All rows of the partitions on a broker from its log starts on. It reads the files of the log table and ignores
    their headers."""
    log = view.log(broker)
    files = [read_records(log.root, name).cast(LOG.arrow) for name in log.refresh().segments]
    rows = pa.concat_tables([LOG.arrow.empty_table(), *files])
    kept = [rows_of(rows, partition, _log_start(view, broker, partition)) for partition in partitions]
    return pa.concat_tables(kept).sort_by(_ORDER).combine_chunks()


def _high_watermarks(view: TopicView, partitions: Mapping[int, PartitionRegistration]) -> dict[int, int]:
    return {p: view.replicas(r.leader)[r.topic_id_partition].high_watermark for p, r in partitions.items()}


def _committed(led: Iterable[pa.Table], high_watermarks: Mapping[int, int]) -> dict[tuple[int, int], bytes]:
    """The values below the high watermarks, by partition and offset."""
    rows = pa.concat_tables(led).select(["partition", "offset", "value"]).to_pylist()
    return {
        (row["partition"], row["offset"]): row["value"]
        for row in rows
        if row["offset"] < high_watermarks[row["partition"]]
    }


def _newest(tables: Iterable[pa.Table]) -> dict[tuple[int, bytes], int]:
    """The offset of the newest record of each partition and key."""
    rows = pa.concat_tables(tables).select(["partition", "key", "offset"]).to_pylist()
    return {(row["partition"], row["key"]): row["offset"] for row in sorted(rows, key=lambda row: row["offset"])}


def _contradictions(one: pa.Table, other: pa.Table) -> int:
    """The number of places where both logs have a record of the same leader epoch, but not the same record."""
    if one.equals(other):
        return 0
    held = {tuple(row[name] for name in _PLACE): row for row in one.to_pylist()}
    places = ((held.get(tuple(row[name] for name in _PLACE)), row) for row in other.to_pylist())
    return sum(mine is not None and mine != row for mine, row in places)


def _bad_offsets(rows: pa.Table, start: int) -> int:
    """The number of offsets from the log start on that are missing or repeated."""
    offsets = rows["offset"].to_pylist()
    distinct = set(offsets)
    return len(offsets) - len(distinct) + max(distinct, default=start - 1) + 1 - start - len(distinct)
