"""A client's view of a topic: its partitions, their leaders, and the leaders' rows. Spark reuses its Python workers, so
a process keeps its views open for later plans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from lakelog.replication.clients.record_limit import RecordLimit
from lakelog.replication.config import Config, TopicConfig, topic_configs
from lakelog.replication.errors import (
    KafkaStorageException,
    LakelogException,
    LeaderNotAvailableException,
    UnknownTopicOrPartitionException,
    error_or,
)
from lakelog.replication.protocol.partition_registration import NO_EPOCH, NO_LEADER, PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import Leadership, ReplicaStatus
from lakelog.replication.protocol.schema_history import AvroValues
from lakelog.replication.protocol.topic import DEFAULT_NAME, check_is_text, check_topic_id, partitions_of
from lakelog.replication.protocol.value_schema import avro_of, schema_of
from lakelog.replication.protocol.value_type import FieldsType
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_listeners import CommitListener
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS, RECENT_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot, check_no_fork
from lakelog.replication.storage.log.log_identity import continues
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.root_identity import read_identity
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG

_MIN_INSYNC_REPLICAS = "min.insync.replicas"

Process: TypeAlias = tuple[str, int]  # a broker's root and broker epoch
_MOST_VIEWS = 8

_lock = threading.Lock()
_views: dict[tuple[str, Config, bool], TopicView] = {}  # of this process, the one that was opened last at the end


class TopicView:
    """Keeps a client's handles on the tables of a cluster open between requests. Threads may share it. It calls `wake`
    after each commit of this process to the `replicas` that it reads. Kafka: the client's `Metadata`."""

    def __init__(self, cluster: Cluster, wake: Callable[[], object] = lambda: None) -> None:
        self.cluster = cluster
        self._listener = CommitListener(wake)
        self._lock = threading.RLock()
        self._logs: dict[int, tuple[Process, ReplicaLog]] = {}
        self._replicas: dict[int, tuple[Process, ReplicaTable]] = {}
        self._in_sync: dict[int, int] = {}  # the newest broker epoch of each broker in the ISRs of the metadata

    def partitions(self, topic: str, max_staleness: float | None = None) -> dict[int, PartitionRegistration]:
        """Reads the metadata and returns the topic's partitions by number. A poll gives a `max_staleness`, as for
        `StateTable.refresh`.

        Raises UnknownTopicOrPartitionException if the topic does not exist, InvalidTopicException if `topic` is not a
        str, KafkaStorageException.
        """
        check_is_text(topic)
        topics, metadata = self.cluster.topics, self.cluster.metadata
        partitions: dict[int, PartitionRegistration] | None = None
        with self._lock:
            if max_staleness is not None:
                topics.refresh(max_staleness)
                metadata.refresh(max_staleness)
                with suppress(UnknownTopicOrPartitionException):  # it may have been made since that poll
                    partitions = partitions_of(topic, topics.topics, metadata.partitions)
            if partitions is None:
                topics.refresh()
                metadata.refresh()
                try:
                    partitions = partitions_of(topic, topics.topics, metadata.partitions)
                except UnknownTopicOrPartitionException:
                    self.cluster.check_current()
                    raise
            for member, epoch in (pair for r in partitions.values() for pair in r.isr_epochs.items()):
                self._in_sync[member] = max(epoch, self._in_sync.get(member, NO_EPOCH))
            return partitions

    def config(self, topic: str) -> TopicConfig:
        """The topic's settings. A setting that the topic does not have is that of this client. Raises
        UnknownTopicOrPartitionException if there is no such topic any more."""
        found = self.cluster.topics.topics.get(topic)
        if found is None:
            raise UnknownTopicOrPartitionException(f"no topic {topic} any more: it was deleted")
        return self.cluster.config.topic(found.configs)

    def min_insync_replicas(self, topic: str) -> int:
        """The topic's `min.insync.replicas`. Raises as `config`, and InvalidConfigurationException if its value is not
        valid here. A newer version may allow it, and fewer replicas than it asks for may lose a record."""
        config, found = self.config(topic), self.cluster.topics.topics.get(topic)
        if found is not None and _MIN_INSYNC_REPLICAS in found.configs:
            topic_configs({_MIN_INSYNC_REPLICAS: found.configs[_MIN_INSYNC_REPLICAS]}, f"topic {topic}")
        return config.min_insync_replicas

    def value_schema(self, topic: str) -> FieldsType | None:
        """The topic's `value.schema`, by the last poll of the topics; None if it has none. Raises
        UnknownTopicOrPartitionException if there is no such topic, and InvalidConfigurationException for a schema that
        this version does not know."""
        found = self.cluster.topics.topics.get(topic)
        if found is None or found.deleting:
            raise UnknownTopicOrPartitionException(f"no topic {topic}, and so no schema of its values")
        return schema_of(topic, found.configs)

    def avro_values(self, topic: str) -> AvroValues | None:
        """The Avro schemas by which the values of a topic are decoded, by the last poll of the topics; None unless its
        schema is one of Avro. Raises InvalidConfigurationException for a schema that this version does not know."""
        found = self.cluster.topics.topics.get(topic)
        return avro_of(topic, found.configs) if found else None

    def record_limit(self, topic: str) -> RecordLimit:
        """The records that a topic takes, by the last poll of the topics.

        The largest size is the topic's own setting. Without one it is that of the partition's leader, else that of all
        brokers, both from the configs table as last read, else that of this client. Raises
        InvalidConfigurationException if values must fit a schema that this version does not know."""
        config, found = self.cluster.config, self.cluster.topics.topics.get(topic)
        settings = config.topic(found.configs if found else {})
        own, needs_key = settings.max_message_bytes, settings.compacts
        values: FieldsType | AvroValues | None = None
        if found is not None and settings.value_schema_validation:
            values = avro_of(topic, found.configs) or schema_of(topic, found.configs)
        if found is not None and "max.message.bytes" in found.configs:
            return RecordLimit(topic, own, needs_key=needs_key, values=values)
        by_broker: Mapping[str, int] = {}
        with suppress(KafkaStorageException):  # it was never read
            with suppress(KafkaStorageException):
                self.cluster.configs.refresh(LONGEST_SECONDS)  # it rarely changes
            by_broker = self.cluster.configs.message_max_bytes
        limit = by_broker.get(DEFAULT_NAME, own)
        limits = {int(name): each for name, each in by_broker.items() if name.isdigit()}

        def leaders() -> dict[int, int]:
            found = partitions_of(topic, self.cluster.topics.topics, self.cluster.metadata.partitions)
            return {number: registration.leader for number, registration in found.items()}

        return RecordLimit(topic, limit, limits, leaders, needs_key, values)

    def log(self, broker_id: int) -> ReplicaLog:
        """A handle on a broker's log. It is opened again when a new process of the broker has registered.

        Raises KafkaStorageException, InconsistentClusterIdException (an emptied root), BrokerNotAvailableException, and
        LeaderNotAvailableException while the log is not the one that the broker has registered: an append to it could
        reuse offsets of records that other replicas have. [LI-04]
        """
        process = self._process(broker_id)
        known = self._logs.get(broker_id)
        if known is None or known[0] != process:
            known = self._logs[broker_id] = process, self._open_log(broker_id)
        return known[1]

    def log_roots(self, topic: str) -> dict[int, StorageRoot]:
        """A folder of a log for each partition, for files that no commit has yet: that of its leader, or if that cannot
        be opened, that of another replica, or of another partition. While the metadata cannot be read, it uses those
        that were read last. Raises as `partitions`, and KafkaStorageException if no log can be opened."""
        try:
            partitions = self.partitions(topic, RECENT_SECONDS)
        except KafkaStorageException:
            topics, metadata = self.cluster.topics, self.cluster.metadata
            partitions = partitions_of(topic, topics.topics, metadata.partitions)
        opened = dict[int, StorageRoot | LakelogException]()

        def first_of(brokers: Iterable[int]) -> StorageRoot | None:
            for broker in brokers:
                if broker not in opened:
                    log = error_or(self.log, broker)
                    opened[broker] = log if isinstance(log, LakelogException) else log.root
                if isinstance(found := opened[broker], StorageRoot):
                    return found
            return None

        found = {number: first_of([r.leader, *r.replicas]) for number, r in partitions.items()}
        if (any_root := next(filter(None, found.values()), None)) is None:
            last = next(each for each in reversed(opened.values()) if isinstance(each, LakelogException))
            raise KafkaStorageException(f"{topic}: no log of its brokers can be opened to stage records: {last}")
        return {number: root or any_root for number, root in found.items()}

    def _open_log(self, broker_id: int) -> ReplicaLog:
        log = ReplicaLog.open(self.cluster.broker_root(broker_id).child(LOG.name), self.cluster.generation)
        if not continues(log, self.cluster.brokers[broker_id].log):
            self.cluster.refresh_brokers()  # for the next attempt
            raise LeaderNotAvailableException(
                f"broker {broker_id}: {log.root.uri} is not the log that it registered, or has lost its end"
            )
        return log

    def replicas(self, broker_id: int, max_staleness: float | None = None) -> Mapping[TopicIdPartition, ReplicaStatus]:
        """Reads a broker's replica rows. Its table is opened again when a new process of the broker has registered. A
        poll gives a `max_staleness`, as for `StateTable.poll`.
        Raises KafkaStorageException, InconsistentClusterIdException (an emptied root), BrokerNotAvailableException."""
        process = self._process(broker_id)
        known = self._replicas.get(broker_id)
        if known is None or known[0] != process:
            root = self.cluster.broker_root(broker_id)
            known = self._replicas[broker_id] = process, ReplicaTable.open(root)
            self._listener.listen(ReplicaTable.folder(root).uri)
        known[1].refresh() if max_staleness is None else known[1].poll(max_staleness)
        return known[1].replicas

    def _process(self, broker_id: int) -> Process:
        """A broker's registered process. The registration is read again if an ISR has a newer broker epoch."""
        if self.cluster.registration(broker_id).broker_epoch < self._in_sync.get(broker_id, NO_EPOCH):
            self.cluster.refresh_brokers()
        found = self.cluster.registration(broker_id)
        return found.root, found.broker_epoch

    def leaderships(
        self, topic: str, partitions: Iterable[int], max_staleness: float | None = None
    ) -> dict[int, Leadership]:
        """Reads the metadata and the leader rows of those partitions that exist, each table once. A poll gives a
        `max_staleness`, as for `StateTable.refresh`.

        If a leader's table cannot be read, its partitions have the error. Raises UnknownTopicOrPartitionException.
        """
        found = self.partitions(topic, max_staleness)
        chosen = {number: found[number] for number in partitions if number in found}
        rows: dict[int, Mapping[TopicIdPartition, ReplicaStatus]] = {NO_LEADER: {}}
        errors: dict[int, LakelogException] = {}
        for leader in {registration.leader for registration in chosen.values()} - {NO_LEADER}:
            try:
                rows[leader] = self.replicas(leader, max_staleness)
            except LakelogException as error:
                rows[leader], errors[leader] = {}, error
        return {
            number: Leadership(r, rows[r.leader].get(r.topic_id_partition), errors.get(r.leader))
            for number, r in chosen.items()
        }


def open_view(cluster_uri: str, config: Config, reads_go_on: bool = False) -> TopicView:
    """A view of the cluster, opened as by `Cluster.open`: the same one for later calls of this process. Raises as
    `Cluster.open`, also in a fork, which has the views of its parent."""
    check_no_fork()
    key = cluster_uri, config, reads_go_on
    with _lock:
        known = _views.get(key)
    if known is not None:  # each plan names the URI anew, so it means the cluster that is there now
        identity = read_identity(replace(known.cluster.root, guard=None))
        seen = known.cluster.cluster_id, known.cluster.generation
        if seen == (identity["cluster_id"], identity["generation"] or 0):
            return known
    view = TopicView(Cluster.open(cluster_uri, config, reads_go_on))
    with _lock:
        _views.pop(key, None)
        _views[key] = view
        if len(_views) > _MOST_VIEWS:
            del _views[next(iter(_views))]
    return view


def forget_view(view: TopicView) -> None:
    """Makes the next `open_view` open the tables again. For a view that has met an error, because a root may have been
    replaced."""
    with _lock:
        for key in [key for key, known in _views.items() if known is view]:
            del _views[key]


class TopicWatch:
    """Finds the partitions of a topic whose metadata or leader row has changed, so that waiting operations are tried.

    A row has HW, LEO, log start, role and leader epoch. A change of any of these completes delayed operations in Kafka,
    too. [DO-02] `topic_id`: that of the operation's topic, by default the one that the first poll finds.
    """

    def __init__(
        self, view: TopicView, topic: str, partitions: Iterable[int], topic_id: str | None = None
    ) -> None:  # fmt: skip
        self._view = view
        self._topic = topic
        self._partitions = tuple(partitions)
        self.seen = view.leaderships(topic, self._partitions)
        self.topic_id = topic_id or next((each.registration.topic_id for each in self.seen.values()), "")

    def leadership(self, number: int) -> Leadership:
        """A partition as it was seen last. Raises UnknownTopicOrPartitionException if there is none, and
        UnknownTopicIdException if the topic was made again."""
        found = self.seen.get(number)
        if found is None:
            raise UnknownTopicOrPartitionException(f"{self._topic}-{number}: topic {self._topic} has no such partition")
        check_topic_id(found.registration, self.topic_id)
        return found

    def moved(self) -> set[int]:
        """Reads again and returns the partitions that have changed since the last read."""
        before, self.seen = self.seen, self._view.leaderships(self._topic, self._partitions, RECENT_SECONDS)
        return {number for number in self._partitions if self.seen.get(number) != before.get(number)}


def pause(milliseconds: int, deadline: float, woken: threading.Event | None = None) -> bool:
    """Waits `milliseconds` between two reads of a table, but not beyond `deadline` (s, monotonic clock). Returns
    whether `woken` was set."""
    left = deadline - time.monotonic()
    return (woken or threading.Event()).wait(max(0.0, min(milliseconds / 1000, left)))
