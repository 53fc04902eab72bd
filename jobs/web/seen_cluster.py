"""One reading of a cluster as the pages of the console show it: figures of topics, brokers, replicas and groups.

Each figure is computed once for a reading, and none needs a further read of a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from lakelog.jobs.admin.cluster_status import BrokerFigures, Partition, assigned_rows, broker_figures
from lakelog.jobs.admin.group_offsets import record_lag
from lakelog.jobs.admin.heartbeats import SILENT, SeenBroker
from lakelog.jobs.metrics.log_sizes import ReplicaSizes
from lakelog.jobs.metrics.scrape_reader import Scrape
from lakelog.replication.config import TopicConfig
from lakelog.replication.protocol.consumer_group import ConsumerGroup
from lakelog.replication.protocol.delayed_operation import known_high_watermark
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import FOLLOWER_ROLE, LEADER_ROLE, ReplicaStatus
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.group_tables import CommittedOffset

Sizes = Mapping[int, ReplicaSizes]


class TopicFigures(NamedTuple):
    """A topic. `messages`: committed records of the partitions whose HW is known; `unknown`: the number of the others.
    `out_of_sync`: replicas that are not in the ISR."""

    name: str
    partitions: int
    replication_factor: int
    out_of_sync: int
    offline: int
    messages: int
    unknown: int
    cleanup_policy: str
    retention_ms: int
    retention_bytes: int
    groups: int


class BrokerLine(NamedTuple):
    """A broker. `skew`: how many percent more partitions it leads than a broker does on average; None if nobody leads.
    `max_lag`: of its replicas, in committed records; None where that is not known."""

    figures: BrokerFigures
    seen: SeenBroker
    skew: float | None
    replicas: int
    out_of_sync: int
    max_lag: int | None
    root_error: str | None


class ReplicaLine(NamedTuple):
    """A replica of a partition. `row`: what its broker has published under the partition's leader epoch, None if it has
    not. `chain`: whether its records are the leader's, None where their log ends differ or are not known."""

    broker: int
    is_leader: bool
    in_sync: bool
    is_adding: bool
    row: ReplicaStatus | None
    lag: int | None
    chain: bool | None


class PartitionLine(NamedTuple):
    """A partition with its replicas. The offsets are those of the leader; None where nobody serves it."""

    judged: Partition
    replicas: Sequence[ReplicaLine]
    log_start_offset: int | None
    high_watermark: int | None
    log_end_offset: int | None

    @property
    def messages(self) -> int | None:
        """The number of committed records."""
        return _committed(self.high_watermark, self.log_start_offset)

    @property
    def chains(self) -> str:
        """Whether all replicas have equal records, as far as their rows tell."""
        found = [replica.chain for replica in self.replicas if not replica.is_leader]
        if False in found:
            return "differ"
        return "equal" if all(found) and self.log_end_offset is not None else "not compared"


class GroupLine(NamedTuple):
    """A consumer group. `lag`: in records, of the partitions whose HW is known; `unknown`: the number of the others."""

    name: str
    group: ConsumerGroup
    topics: Sequence[str]
    partitions: int
    lag: int
    unknown: int


class GroupPartition(NamedTuple):
    """A partition of a group. `owner`: the id of the member that owns it."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    owner: str | None


class SeenCluster:
    """A cluster as it was read at a time, in seconds since the epoch. Threads share it."""

    def __init__(self, at: float, cluster: Cluster, found: Scrape) -> None:
        self.at, self.found, self.state = at, found, found.state
        self.root, self.cluster_id, self.config = cluster.root, cluster.cluster_id, cluster.config
        self.topics_by_name: Mapping[str, Topic] = {
            name: topic for name, topic in cluster.topics.topics.items() if not topic.deleting
        }
        self.metadata_version = cluster.metadata.version
        live = {b: seen.registration.root for b, seen in self.state.brokers.items() if seen.state not in SILENT}
        self.roots: Mapping[int, str] = live
        self._storage = {uri: cluster.storage_of(broker, uri) for broker, uri in live.items()}

    def storage_of(self, uri: str) -> StorageRoot:
        """The root of a live broker."""
        return self._storage[uri]

    @cached_property
    def partitions_by_topic(self) -> Mapping[str, Sequence[Partition]]:
        """The partitions of each topic, by number."""
        found: dict[str, list[Partition]] = {name: [] for name in sorted(self.topics_by_name)}
        for partition in self.state.partitions:
            found.setdefault(partition.registration.topic, []).append(partition)
        return found

    @cached_property
    def high_watermarks(self) -> Mapping[TopicIdPartition, int | None]:
        """The HW of each partition; None where nobody serves it, or it is not known."""
        return {key: known_high_watermark(seen) for key, seen in self.found.leaderships.items()}

    def topic_config(self, topic: Topic) -> TopicConfig:
        """The settings of a topic, with those of the console where it has none."""
        return self.config.topic(topic.configs)

    @cached_property
    def topics(self) -> Sequence[TopicFigures]:
        """All topics by name."""
        groups = Counter(topic for topic, _ in {(row.topic, row.group_id) for row in self.found.offsets})
        settings: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        lines = []
        for name, partitions in self.partitions_by_topic.items():
            topic = self.topics_by_name[name]
            key = tuple(sorted(topic.configs.items()))
            config = settings.get(key) or settings.setdefault(key, self.topic_config(topic))
            messages = [self._messages(p) for p in partitions]
            known = [count for count in messages if count is not None]
            lines.append(
                TopicFigures(
                    name, len(partitions), max((len(p.replicas) for p in partitions), default=0),
                    sum(len(p.out_of_sync) for p in partitions), sum(p.is_offline for p in partitions),
                    sum(known), len(messages) - len(known), config.cleanup_policy, config.retention_ms,
                    config.retention_bytes, groups[name],
                )
            )  # fmt: skip
        return lines

    def _messages(self, partition: Partition) -> int | None:
        key = partition.registration.topic_id_partition
        row = self.found.leaderships[key].leader_row
        return _committed(self.high_watermarks[key], None if row is None else row.log_start_offset)

    @cached_property
    def _rows(self) -> Mapping[int, Mapping[TopicIdPartition, ReplicaStatus]]:
        return {broker: rows for broker, rows in self.state.rows.items() if not isinstance(rows, str)}

    def line_of(self, partition: Partition) -> PartitionLine:
        """A partition with its replicas, the preferred leader first."""
        registration = partition.registration
        key = registration.topic_id_partition
        leader = self.found.leaderships[key].leader_row
        lines = []
        for broker in registration.replicas:
            row = self._rows.get(broker, {}).get(key)
            row = row if row is not None and row.leader_epoch == registration.leader_epoch else None
            is_leader = broker == registration.leader
            is_same = None
            if leader is not None and row is not None and row.log_end_offset == leader.log_end_offset:
                is_same = row.chain == leader.chain
            lag = row.lag if row is not None and row.role == FOLLOWER_ROLE else None
            lines.append(
                ReplicaLine(
                    broker, is_leader, broker in registration.isr, broker in registration.adding_replicas, row,
                    0 if row is not None and row.role == LEADER_ROLE else lag, is_same,
                )
            )  # fmt: skip
        return PartitionLine(
            partition, lines, None if leader is None else leader.log_start_offset, self.high_watermarks[key],
            None if leader is None else leader.log_end_offset,
        )  # fmt: skip

    @cached_property
    def brokers(self) -> Sequence[BrokerLine]:
        """All brokers by id."""
        led = sum(not p.is_offline for p in self.state.partitions)
        mean = led / max(1, len(self.roots))
        missing = Counter(broker for p in self.state.partitions for broker in p.out_of_sync)
        lines = []
        for figures in broker_figures(self.state):
            rows = self.state.rows.get(figures.broker)
            held = assigned_rows(self.state, figures.broker) or ()
            lags = [row.lag or 0 for row in held if row.role == FOLLOWER_ROLE]
            lines.append(
                BrokerLine(
                    figures, self.state.brokers[figures.broker], 100 * (figures.leads / mean - 1) if mean else None,
                    figures.leads + figures.follows, missing[figures.broker],
                    None if figures.lag is None else max(lags, default=0),
                    rows if isinstance(rows, str) else None,
                )
            )  # fmt: skip
        return lines

    def partitions_of_broker(self, broker: int) -> Sequence[Partition]:
        """The partitions that are assigned to a broker, by name."""
        return [p for p in self.state.partitions if broker in p.registration.replicas]

    @cached_property
    def _offsets(self) -> Mapping[str, Sequence[CommittedOffset]]:
        found: dict[str, list[CommittedOffset]] = {}
        for row in self.found.offsets:
            found.setdefault(row.group_id, []).append(row)
        return found

    @cached_property
    def groups(self) -> Sequence[GroupLine]:
        """All groups by name."""
        return [self._group_line(name, self.partitions_of_group(name)) for name in self.found.groups]

    def _group_line(self, name: str, partitions: Sequence[GroupPartition]) -> GroupLine:
        lags = [p.lag for p in partitions if p.committed is not None]
        known = [lag for lag in lags if lag is not None]
        group, topics = self.found.groups.get(name, ConsumerGroup()), sorted({p.topic for p in partitions})
        return GroupLine(name, group, topics, len(partitions), sum(known), len(lags) - len(known))

    def partitions_of_group(self, name: str) -> Sequence[GroupPartition]:
        """The partitions that a group has committed, or a member owns, by name."""
        group = self.found.groups.get(name, ConsumerGroup())
        committed = {(row.topic, row.partition): row for row in self._offsets.get(name, ())}
        ids = {topic.topic: topic.topic_id for topic in self.topics_by_name.values()}
        owners = {
            (p.topic, p.partition): member.member_id
            for member in group.members
            for p in member.owned
            if ids.get(p.topic) == p.topic_id
        }
        found = []
        for topic, number in sorted({*committed, *owners}):
            row = committed.get((topic, number))
            end = self.high_watermarks.get(TopicIdPartition(ids.get(topic, ""), number))
            offset = None if row is None else row.committed_offset
            lag = None if end is None or offset is None else record_lag(end, offset)
            found.append(GroupPartition(topic, number, offset, end, lag, owners.get((topic, number))))
        return found

    def groups_of_topic(self, topic: str) -> Sequence[GroupLine]:
        """The groups that read a topic, with their figures for it alone."""
        readers = {row.group_id for row in self.found.offsets if row.topic == topic}
        readers |= {name for name, group in self.found.groups.items() if any(topic in m.topics for m in group.members)}
        return [
            self._group_line(name, [p for p in self.partitions_of_group(name) if p.topic == topic])
            for name in sorted(readers)
        ]


def _committed(high_watermark: int | None, log_start_offset: int | None) -> int | None:
    """The number of committed records; None where it is not known."""
    if high_watermark is None or log_start_offset is None:
        return None
    return max(0, high_watermark - log_start_offset)


def size_of(sizes: Sizes, keys: Collection[TopicIdPartition], brokers: Collection[int] | None = None) -> int | None:
    """The bytes of these partitions' replicas, on some brokers or on all; None if no log was read."""
    read = [found.sizes for broker, found in sizes.items() if brokers is None or broker in brokers]
    return sum(found.get(key, 0) for found in read for key in keys) if read else None
