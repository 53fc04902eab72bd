"""The input of both followers: a leader's log, and a Delta table beside it with the same files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.clients.admin import TopicDescription
from lakelog.replication.clients.record_set import record_set
from lakelog.replication.errors import LakelogException
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.protocol.append import AppendPosition, PartitionAppend
from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.producer_state import increment_sequence
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.storage.delta.commit_format import commit_name
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.append import append
from lakelog.replication.storage.log.new_batches import SEGMENT_BYTES
from lakelog.replication.storage.log.replica_log import LogChange, ReplicaLog
from lakelog.replication.storage.log.segment import Segment
from lakelog.replication.storage.tables.producer_table import new_producer_id
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG

LEADER, FOLLOWER = 1, 2
TOPIC, PARTITIONS = "bench", 12


@dataclass(frozen=True)
class Append:
    """Records that are in segments of the leader's log but not yet committed."""

    requests: tuple[PartitionAppend, ...]
    segments: tuple[Segment, ...]

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(request.records for request in self.requests)

    @property
    def bytes(self) -> int:
        """The size of the segments in bytes."""
        return sum(segment.file.size for segment in self.segments)


class Sources:
    """A cluster of a leader and a follower with one topic, and the table beside it.

    All records are written once, before the measurements, under the current leader epoch; a restarted cluster has
    another one. A commit makes them visible in one of the two places. Hard links let both followers read the same bytes
    from the same place on disk.
    """

    def __init__(self, spark: SparkSession, folder: Path, tables: Sequence[pa.Table]) -> None:
        self.folder = folder
        self.cluster = LocalCluster(spark, str(folder / "lakelog"), brokers=2)
        self.mirror = ReplicaLog.create(StorageRoot.of(str(folder / "plain-source")))
        self._producer_id = new_producer_id()
        self._ends: dict[TopicIdPartition, LogEnd] = {}
        self._tables = tables
        self.appends: list[Append] = []

    def begin(self) -> None:
        """Starts the cluster and writes the records."""
        self.cluster.start()
        self.leader = ReplicaLog.open(self.log_of(LEADER))
        topic = self._create_topic()
        self.appends = [self._write(topic, table) for table in self._tables]

    def log_of(self, broker_id: int) -> StorageRoot:
        """The root of a broker's log."""
        return StorageRoot.of(self.cluster.broker_uri(broker_id)).child(LOG.name)

    def _create_topic(self) -> TopicDescription:
        """Creates the topic, and waits until its leader's log accepts appends and its follower fetches."""
        assignment = dict.fromkeys(range(PARTITIONS), (LEADER, FOLLOWER))
        topic = self.cluster.admin().create_topic(TOPIC, assignment=assignment)
        rows = ReplicaTable.open(StorageRoot.of(self.cluster.broker_uri(FOLLOWER)))
        wait_until(lambda: _fetches(rows, topic), "the follower of a new topic begins to fetch", 60, 0.05)
        return topic

    def _write(self, topic: TopicDescription, table: pa.Table) -> Append:
        """Does the work of `Producer.send` up to the commit."""
        with record_set(TOPIC, table, PARTITIONS, SEGMENT_BYTES) as given:
            requests = self._requests(topic, given.counts)
            ends = {p: self._end(p) for p in (r.topic_id_partition for r in requests)}
            positions = {p: AppendPosition(end.offset, chain=end.chain) for p, end in ends.items()}
            segments = given.writer(self.leader.root, LEADER, requests)(positions)
        for header in (header for segment in segments for header in segment.headers):
            self._ends[header.topic_id_partition] = LogEnd(header.next_offset, header.chain)
        return Append(tuple(requests), tuple(segments))

    def _end(self, partition: TopicIdPartition) -> LogEnd:
        return self._ends.get(partition, LogEnd(0, genesis(partition)))

    def _requests(self, topic: TopicDescription, counts: Mapping[int, int]) -> list[PartitionAppend]:
        return [
            PartitionAppend(
                topic=TOPIC,
                topic_id=r.topic_id,
                partition=r.partition,
                replicas=r.replicas,
                leader_epoch=r.leader_epoch,
                records=counts[r.partition],
                producer_id=self._producer_id,
                producer_epoch=0,
                base_sequence=increment_sequence(0, self._end(r.topic_id_partition).offset),
            )
            for r in topic.partitions
            if r.partition in counts
        ]

    def commit_to_leader(self, appended: Append) -> float:
        """Commits to the leader's log as a producer does. Returns the time of the commit in seconds since the epoch."""
        outcomes = append(self.leader, appended.requests, lambda _: appended.segments, lambda *_: (), "bench")
        for outcome in outcomes.values():
            if isinstance(outcome, LakelogException):
                raise outcome
        return committed_at(self.leader.root, self.leader.current().version)

    def commit_to_mirror(self, appended: Append) -> float:
        """Commits the same files to the table beside the log, with the same code. Returns the time of the commit in s
        since the epoch."""
        for segment in appended.segments:
            os.link(self.leader.root.path(segment.name), self.mirror.root.path(segment.name))
        self.mirror.transact({"who": "bench", "why": "append"}, lambda _: LogChange(adds=appended.segments))
        return committed_at(self.mirror.root, self.mirror.current().version)


def _fetches(follower: ReplicaTable, topic: TopicDescription) -> bool:
    follower.refresh()
    states = [row.state for row in follower.replicas.values()]
    return states == [FollowerState.FETCHING] * len(topic.partitions)


def committed_at(table: StorageRoot, version: int) -> float:
    """The time at which a version was written, in seconds since the epoch."""
    return os.stat(table.path(commit_name(version))).st_mtime_ns / 1e9
