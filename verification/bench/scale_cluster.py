"""The tables of a cluster of any size, and brokers on them whose rounds a benchmark runs one by one. No Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lakelog.replication.config import Config
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.leader_election import new_partition
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.server.fetcher.fetch_runner import FetchContext, FetchRunner
from lakelog.replication.server.fetcher.fetch_states import SharedFetchStates
from lakelog.replication.server.fetcher.replica_fetcher import ReplicaFetcher
from lakelog.replication.server.follower_writes import FollowerWrites
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.server.pause_point import PausePoint
from lakelog.replication.server.replica_fetcher_manager import BrokerIdAndFetcherId, ReplicaFetcherManager, SourceBroker
from lakelog.replication.server.replica_manager import ReplicaManager
from lakelog.replication.server.replication_quotas import FetcherQuotas, ReplicationQuotas
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from lakelog.verification.bench.small_commits import SmallCommits

LEADER = 1
_EPOCH = 1  # of every broker
_CAUSE = {"who": "bench", "why": "set up"}


class ScaleCluster:
    """Tables in which broker 1 leads every partition, and followers share them: each partition has `replicas`."""

    def __init__(self, folder: str, partitions: int, topics: int = 1, brokers: int = 3, replicas: int = 3) -> None:
        root = StorageRoot.of(folder)
        self.uri, self._roots = root.child("cluster").uri, {b: root.child(f"broker-{b}") for b in range(1, brokers + 1)}
        cluster_id = format_cluster(root.child("cluster"), Config())
        self.tables: dict[int, BrokerTable] = {}
        for broker, own in self._roots.items():
            format_broker(own, cluster_id, broker)
            self.tables[broker] = BrokerTable.open_or_create(root.child("cluster"), broker)
            row = BrokerRegistration(broker, own.uri, None, _EPOCH, -1, False, None, "log", 0)
            self.tables[broker].register(lambda _, row=row: row)  # type: ignore[misc]
        self.cluster = Cluster.open(self.uri)
        self._write_metadata(partitions, topics, replicas)

    def _write_metadata(self, partitions: int, topics: int, replicas: int) -> None:
        each, followers = partitions // topics, len(self._roots) - 1
        named = [Topic(f"bench-{number}", f"bench-id-{number}", each) for number in range(topics)]
        self.cluster.topics.change(named, (), _CAUSE)
        sets = [(LEADER, *((n + i) % followers + 2 for i in range(replicas - 1))) for n in range(followers)]
        new = [
            new_partition(topic.topic, topic.topic_id, number, sets[(index + number) % followers], self._roots)
            for index, topic in enumerate(named)
            for number in range(each)
        ]
        self.cluster.metadata.put((replace(r, isr_epochs=dict.fromkeys(r.isr, _EPOCH)) for r in new), _CAUSE)

    def change_partition(self, partition: TopicIdPartition) -> None:
        """Writes one partition again with a higher partition epoch, as each change of an ISR does."""
        self.cluster.metadata.refresh()
        found = self.cluster.metadata.partitions[partition]
        self.cluster.metadata.put([replace(found, partition_epoch=found.partition_epoch + 1)], _CAUSE)

    def broker(self, number: int) -> ScaleBroker:
        """A new process of a broker."""
        return ScaleBroker(number, Cluster.open(self.uri), self._roots[number])


class ScaleBroker:
    """The replica manager of one broker, with its log and its table. Its fetchers fetch only when they are told to."""

    def __init__(self, number: int, cluster: Cluster, root: StorageRoot) -> None:
        self.number, self._cluster, self._root = number, cluster, root
        self.cache, self.log = MetadataCache(cluster), ReplicaLog.open(root.child(LOG.name))
        table, config = ReplicaTable.open(root), cluster.config
        self.log.claim(_EPOCH)
        table.claim(_EPOCH)
        self._pause, self._quotas = PausePoint(), ReplicationQuotas(number, self.cache)
        fetchers = ReplicaFetcherManager(1, self._fetcher, self._source)
        self.manager = ReplicaManager(
            number, _EPOCH, self.log, table, self.cache, fetchers, config.replica_lag_time_max_ms, self._pause
        )
        self._writes = FollowerWrites(self.log, f"broker-{number}", self.manager.publish)
        self.fetchers = fetchers.fetchers

    def _source(self, broker_id: int) -> SourceBroker:
        return SourceBroker(self.cache.brokers()[broker_id].root, _EPOCH)

    def _fetcher(self, key: BrokerIdAndFetcherId, root: str) -> _Fetcher:
        no_spark: Any = None
        context = FetchContext(
            no_spark, self._cluster.config, self.number, self.log, key.broker_id, StorageRoot.of(root),
            lambda: self.cache.replica_table(key.broker_id), self.manager.follow_high_watermarks, lambda _: None,
            self._writes, self._pause, FetcherQuotas(self._quotas, key.broker_id), lambda: self.cache.partitions,
        )  # fmt: skip
        states = SharedFetchStates()
        return _Fetcher(
            no_spark, self.number, key, StorageRoot.of(root), self._root.child("checkpoints"), self._cluster.config,
            states, FetchRunner(context, states), self._pause,
        )  # fmt: skip

    def take_up_roles(self) -> None:
        """Looks at the metadata and takes up its roles."""
        self.cache.refresh()
        self.manager.apply()

    def lead(self) -> None:
        """Looks at the followers and measures what they fetch, as each round of a broker does."""
        self.manager.lead()
        self._quotas.look_at_followers(self.manager.leads, self.log.current())

    def fetch(self, lagging: Iterable[TopicIdPartition]) -> None:
        """Fetches until nothing is due. `lagging`: the partitions with news. Without a stream a round reads the headers
        of these from the leader's snapshot."""
        for fetcher in self.fetchers().values():
            assert isinstance(fetcher, _Fetcher)
            fetcher.run(lagging)

    def appends(self, partition: TopicIdPartition) -> SmallCommits:
        """An idempotent producer of one record a commit."""
        return SmallCommits(self.log, [partition], 1, self.cache.partitions[partition].topic)


class _Fetcher(ReplicaFetcher):
    """A fetcher without a query and a thread."""

    def start(self) -> None:
        pass

    def run(self, lagging: Iterable[TopicIdPartition]) -> None:
        self._states.fell_behind(lagging)
        while self._fetch():
            pass
