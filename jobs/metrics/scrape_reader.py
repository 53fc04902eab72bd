"""The reads of one scrape, without Spark: the tables that have changed since the last scrape. Of logs it reads only the
new files, and only for the sizes of replicas.

A scrape looks at each table once: `topics`, `metadata`, `groups`, `controller`, one table for each broker and each
group in the cluster root, and `replicas` in the root of each broker that is alive. There is no request for a partition.
A broker without a heartbeat has rows of the past, so they are not read.

Tables are polled: in an object store that is one request for each, because only this process's own polls of the last
second may answer. Several cluster roots are asked for what a majority has, since the nearest one may be behind.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lakelog.jobs.admin.cluster_status import ClusterState, known_partitions
from lakelog.jobs.admin.heartbeats import SILENT, SeenBroker, live_groups, observe
from lakelog.jobs.metrics.log_sizes import LogSizes, ReplicaSizes
from lakelog.replication.clients.group_access import GroupAccess
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.consumer_group import ConsumerGroup
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import Leadership, ReplicaStatus
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.freshness import RECENT_SECONDS
from lakelog.replication.storage.delta.quorum_root import QuorumRoot
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.root_changes import RootChanges
from lakelog.replication.storage.tables.group_tables import CommittedOffset, groups_with_tables
from lakelog.replication.storage.tables.metadata_table import Partitions

logger = logging.getLogger(__name__)

_READERS = 8


class Scrape(NamedTuple):
    """A cluster as one scrape has read it.

    `topics`, `partitions`: their numbers, also of those that are being deleted. `metadata`: each version of the
    metadata since the last scrape, at first the one that was there. `leaderships`: by partition, without those that are
    being deleted. `offsets`: those that groups have committed, of topics that exist. `sizes`: of the replicas of
    each live broker, or why its log cannot be read; none if they were not asked for.
    """

    state: ClusterState
    topics: int
    partitions: int
    metadata: Sequence[Partitions]
    leaderships: Mapping[TopicIdPartition, Leadership]
    offsets: Sequence[CommittedOffset]
    groups: Mapping[str, ConsumerGroup]
    sizes: Mapping[int, ReplicaSizes | str] = {}


class ScrapeReader:
    """Reads an open cluster again and again; its tables stay open. `cluster` is as of the last read. It is not
    thread-safe."""

    def __init__(self, uri: str, config: Config, has_sizes: bool = False) -> None:
        """`has_sizes`: whether it reads the sizes of replicas, too. Raises as `Cluster.open`."""
        self._has_sizes = has_sizes
        self._logs: dict[str, LogSizes] = {}  # by root
        self.cluster = Cluster.open(uri, config)
        self._view = TopicView(self.cluster)
        self._groups: dict[str, GroupAccess] = {}
        self._unreadable = set[int]()
        self._first: list[Partitions] = [self.cluster.metadata.partitions]

    def read(self) -> Scrape:
        """The cluster as it is now. Raises KafkaStorageException, and other LakelogExceptions, if the cluster root
        cannot be read. The root of a broker that cannot be read has its error in `state.rows`."""
        cluster = self.cluster
        brokers, controller = observe(cluster, None)
        staleness = None if isinstance(cluster.root, QuorumRoot) else RECENT_SECONDS
        cluster.topics.refresh(staleness)
        metadata, self._first = [*self._first, *cluster.metadata.refresh_versions(staleness)], []
        ids = {topic.topic: topic.topic_id for topic in cluster.topics.topics.values() if not topic.deleting}
        # Before the high watermarks: an offset that is committed meanwhile would lie above them.
        offsets = [row for row in cluster.groups.read(staleness) if ids.get(row.topic) == row.topic_id]
        alive = [broker for broker, seen in brokers.items() if seen.state not in SILENT]
        # One by one on a disk: it answers at once, and rows that have all changed need less memory so.
        at_once = 1 if cluster.root.is_local else _READERS
        rows = dict(zip(alive, in_threads(self._rows, alive, at_once), strict=True))
        sizes = self._sizes(alive)
        self._note_unreadable({b: e for found in (rows, sizes) for b, e in found.items() if isinstance(e, str)})
        roots = RootChanges(cluster).describe() if isinstance(cluster.root, QuorumRoot) else ()
        state = ClusterState(controller, brokers, known_partitions(cluster), rows, roots=roots)
        return Scrape(
            state, len(cluster.topics.topics), len(cluster.metadata.partitions), metadata, _leaderships(state), offsets,
            self._live_groups(offsets), sizes,
        )  # fmt: skip

    def _note_unreadable(self, errors: dict[int, str]) -> None:
        """Logs the error of a broker's root when it is new."""
        for broker, error in errors.items():
            if broker not in self._unreadable:
                logger.warning("the root of broker %d cannot be read: %s", broker, error)
        self._unreadable = set(errors)

    def _rows(self, broker: int) -> Mapping[TopicIdPartition, ReplicaStatus] | str:
        try:
            return self._view.replicas(broker, RECENT_SECONDS)
        except (LakelogException, OSError) as error:
            return str(error)

    def _sizes(self, brokers: Sequence[int]) -> dict[int, ReplicaSizes | str]:
        if not self._has_sizes:
            return {}
        return dict(zip(brokers, in_threads(self._sizes_of, brokers, _READERS), strict=True))

    def _sizes_of(self, broker: int) -> ReplicaSizes | str:
        try:
            root = self.cluster.broker_root(broker)
            if root.uri not in self._logs:
                self._logs[root.uri] = LogSizes(root)
            return self._logs[root.uri].refresh()
        except (LakelogException, OSError) as error:
            return str(error)

    def _live_groups(self, offsets: Sequence[CommittedOffset]) -> dict[str, ConsumerGroup]:
        with_tables = groups_with_tables(self.cluster.root)
        self._groups = {name: self._groups.get(name) or GroupAccess(self.cluster, name) for name in with_tables}
        names = list(self._groups)
        found = in_threads(lambda name: self._groups[name].refresh(), names, _READERS)
        live = live_groups(self.cluster, dict(zip(names, found, strict=True)), None)
        with_offsets = {row.group_id for row in offsets}
        return {
            name: live.get(name, ConsumerGroup())
            for name in sorted({*with_offsets, *(name for name, group in live.items() if group.members)})
        }


def is_readable(found: Scrape, broker: int) -> bool:
    """Whether a broker is alive, and its replica rows, and sizes if they were asked for, were read."""
    return not any(isinstance(each, str) for each in (found.state.rows.get(broker, ""), found.sizes.get(broker)))


def live_brokers(state: ClusterState) -> list[SeenBroker]:
    """The brokers that send heartbeats."""
    return [seen for seen in state.brokers.values() if seen.state not in SILENT]


def _leaderships(state: ClusterState) -> dict[TopicIdPartition, Leadership]:
    rows = {broker: found for broker, found in state.rows.items() if not isinstance(found, str)}
    none: Mapping[TopicIdPartition, ReplicaStatus] = {}
    return {
        (key := p.registration.topic_id_partition): Leadership(
            p.registration, rows.get(p.registration.leader, none).get(key)
        )
        for p in state.partitions
    }
