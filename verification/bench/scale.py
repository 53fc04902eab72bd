"""`bench scale`: how the time of one change grows with the size of the whole, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.exporter import ClusterScrapes
from lakelog.jobs.metrics.exposition import TEXT_FORMAT, Labels, page
from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol import partition_log
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.server.fetcher.fetch_runner import FetchContext, FetchRunner
from lakelog.replication.server.fetcher.replica_fetcher import ReplicaFetcher
from lakelog.replication.server.fetcher.shared_fetch_states import SharedFetchStates
from lakelog.replication.server.follower_writes import FollowerWrites
from lakelog.replication.server.metadata_cache import MetadataCache
from lakelog.replication.server.periodic_task import PausePoint
from lakelog.replication.server.replica_fetcher_manager import BrokerIdAndFetcherId, ReplicaFetcherManager, SourceBroker
from lakelog.replication.server.replica_manager import ReplicaManager
from lakelog.replication.server.replication_quotas import ReplicationQuotas
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from lakelog.verification.bench.controller_bench import measure_controller
from lakelog.verification.bench.measuring import bench_folder
from lakelog.verification.bench.replication import circumstances
from lakelog.verification.bench.small_commits import SmallCommits

PARTITIONS, TOPICS, BROKERS, FILES, COMMITS = "partitions", "topics", "brokers", "data files", "commits"
_TIMES = 5
_POLLS = 20
Times = Iterator[tuple[str, float]]  # an action, and its seconds
LEADER = 1
_EPOCH = 1  # of every broker
_CAUSE = {"who": "bench", "why": "set up"}
_LIVE = Config(broker_session_timeout_ms=86_400_000)  # the brokers of a bench send no heartbeats


@dataclass(frozen=True)
class ScalePlan:
    """The sizes, by what grows."""

    sizes: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {
            PARTITIONS: (10, 100, 1_000, 10_000),
            TOPICS: (1, 10, 100, 1_000),
            BROKERS: (3, 10, 30),
            FILES: (10, 100, 1_000),
            COMMITS: (10, 100, 1_000),
        }
    )
    partitions: int = 1_000  # where topics or brokers grow

    def up_to(self, most: int) -> ScalePlan:
        """The plan without sizes above `most`, apart from the smallest two of each."""
        return replace(
            self, sizes={by: sizes[:2] + tuple(s for s in sizes[2:] if s <= most) for by, sizes in self.sizes.items()}
        )

    @property
    def steps(self) -> int:
        """The number of measured sizes."""
        return sum(map(len, self.sizes.values()))


# Checks that the benchmark works. Its figures mean little.
QUICK_SCALE = ScalePlan(
    {PARTITIONS: (5, 20), TOPICS: (1, 4), BROKERS: (3, 4), FILES: (5, 20), COMMITS: (5, 20)}, partitions=20
)


@dataclass
class Growth:
    """The seconds of one action at each size of what grows."""

    by: str
    action: str
    seconds: dict[int, float] = field(default_factory=dict)

    @property
    def factor(self) -> float:
        """The time at the largest size by that at the smallest."""
        return self.seconds[max(self.seconds)] / max(1e-9, self.seconds[min(self.seconds)])


def measure_scale(plan: ScalePlan) -> list[Growth]:
    """Runs the plan in temporary folders, with a progress bar on stderr."""
    measures: dict[str, Callable[[Path, int], Times]] = {
        PARTITIONS: _with_partitions,
        TOPICS: lambda folder, size: broker_times(ScaleCluster(str(folder), max(size, plan.partitions), size)),
        BROKERS: lambda folder, size: broker_times(ScaleCluster(str(folder), plan.partitions, 1, size)),
        FILES: lambda folder, size: log_times(folder, size, 10),
        COMMITS: lambda folder, size: log_times(folder, size, 1),
    }
    found: dict[tuple[str, str], Growth] = {}
    with counting_bar() as progress:
        task = progress.add_task("", total=plan.steps)
        for by, sizes in plan.sizes.items():
            for size in sizes:
                progress.update(task, description=f"{size:,} {by}")
                with bench_folder() as folder:
                    for action, seconds in measures[by](folder, size):
                        found.setdefault((by, action), Growth(by, action)).seconds[size] = seconds
                progress.advance(task)
    return list(found.values())


def _with_partitions(folder: Path, partitions: int) -> Times:
    yield from broker_times(ScaleCluster(str(folder), partitions))
    steps = {step.name: step.seconds for step in measure_controller(partitions, 5)}
    yield "controller: starts", steps["start-up"]
    yield "controller: decides on a lost broker", steps["loss of a broker"]


def broker_times(cluster: ScaleCluster) -> Times:
    """The seconds of what a leader and a follower of all partitions do. Each change is one record of one partition, or
    one row of it."""
    leader = cluster.broker(LEADER)
    yield "leader: takes up all roles", seconds_of(leader.take_up_roles)
    partition = min(leader.manager.led())
    replicas = leader.cache.partitions[partition].replicas
    followers = [cluster.broker(number) for number in replicas[1:]]
    yield "follower: takes up all roles", seconds_of(followers[0].take_up_roles)
    for other in followers[1:]:
        other.take_up_roles()
    for _ in range(2):  # what each partition does once, when its role is new, is not what one change costs
        for follower in followers:
            follower.fetch(())
        leader.lead()
        leader.manager.publish("set up")
    yield from _changes(cluster, leader, followers, partition)
    yield "leader: polls, nothing new", _median(leader.lead)
    yield "broker: polls the metadata, nothing new", _median(leader.cache.refresh)
    yield "broker: opens its log and reads its roles", seconds_of(lambda: _open_log(leader))
    yield "client: opens the cluster's tables", seconds_of(lambda: _open_tables(cluster, leader))
    yield from _scrape_times(cluster)


def _scrape_times(cluster: ScaleCluster) -> Times:
    """The seconds of pages of the exporter. Raises LakelogException if a page lacks a partition or a replica."""
    scrapes, size = list[ClusterScrapes](), cluster.size

    def start() -> None:
        scrapes[:] = [ClusterScrapes(cluster.uri, _LIVE, Labels({}))]
        _read_page(scrapes[0], size)

    yield "exporter: starts, and serves a page", seconds_of(start)
    yield "exporter: serves a page, nothing new", _median(lambda: _read_page(scrapes[0], size))
    changed = []
    for time_of_round in range(_TIMES):
        cluster.change_all_rows(time_of_round)
        changed.append(seconds_of(lambda: _read_page(scrapes[0], size)))
    yield "exporter: serves a page, all rows are new", median(changed)


def _read_page(scrapes: ClusterScrapes, size: tuple[int, int]) -> None:
    whole, (partitions, replicas) = b"".join(page(scrapes.scrape(), TEXT_FORMAT)), size
    if (found := whole.count(b"\nkafka_topic_partition_leader{")) != partitions:
        raise LakelogException(f"a page of the exporter has {found} of {partitions} partitions")
    if (found := whole.count(b"\nkafka_log_log_logendoffset{")) != replicas:
        raise LakelogException(f"a page of the exporter has {found} of {replicas} replicas")


def _changes(
    cluster: ScaleCluster, leader: ScaleBroker, followers: Sequence[ScaleBroker], partition: TopicIdPartition
) -> Times:
    """Repeats one acknowledged record, and one change of a registration."""
    times: dict[str, list[float]] = {}
    commits = leader.appends(partition)
    for _ in range(_TIMES):
        rounds: dict[str, Callable[[], object]] = {
            "producer: commits a record": commits.make,
            "follower: fetches a record": lambda: followers[0].fetch([partition]),
            "leader: polls, a row is new": leader.lead,
            "leader: publishes a HW": lambda: leader.manager.publish("high watermark"),
        }
        for action, work in rounds.items():
            if action.startswith("leader: polls"):
                for other in followers[1:]:
                    other.fetch([partition])
            times.setdefault(action, []).append(seconds_of(work))
    for _ in range(2):
        cluster.change_partition(partition)
        times.setdefault("leader: applies a changed partition", []).append(seconds_of(leader.take_up_roles))
    _check(leader, followers, partition, commits)
    yield from ((action, median(seconds)) for action, seconds in times.items())


def _check(
    leader: ScaleBroker, followers: Sequence[ScaleBroker], partition: TopicIdPartition, commits: SmallCommits
) -> None:  # fmt: skip
    """Raises LakelogException if a replica lacks records, or the HW has not come to the end: then no time counts."""
    for _ in range(_POLLS):  # a poll does not wait for a follower's table that takes long to read
        if leader.manager.led()[partition].high_watermark < commits.records:
            leader.manager.lead()
    ends = {broker.log.refresh().known(partition).log_end_offset for broker in (leader, *followers)}
    high_watermark = leader.manager.led()[partition].high_watermark
    if {high_watermark, *ends} != {commits.records}:
        raise LakelogException(
            f"{partition}: {commits.records} records were sent, the logs end at {sorted(ends)}, the HW is "
            f"{high_watermark}"
        )


def _open_log(broker: ScaleBroker) -> None:
    state = ReplicaLog.open(broker.log.root).refresh()
    for partition in broker.manager.led():
        state.known(partition)


def _open_tables(cluster: ScaleCluster, leader: ScaleBroker) -> None:
    opened = Cluster.open(cluster.uri)
    assert opened.metadata.partitions
    ReplicaTable.open(opened.broker_root(leader.number))


def log_times(folder: Path, size: int, files: int) -> Times:
    """The seconds of a commit to a log with `size` commits, or with `size` data files in commits of `files`, and of
    opening it. Its owner maintains it, but does not compact it."""
    log = ReplicaLog.create(StorageRoot.of(str(folder)).child(LOG.name))
    partitions = [TopicIdPartition("bench-id", number) for number in range(4)]
    log.become(dict.fromkeys(partitions, partition_log.Role(0, partition_log.LEADER)), "bench")
    commits = SmallCommits(log, partitions, 1)
    for _ in range(size // min(files, size)):
        commits.make(min(files, size))
        log.maintain()
    yield "producer: commits a record to each of 4 partitions", median(commits.make() for _ in range(_TIMES))
    yield "broker: opens its log", seconds_of(lambda: ReplicaLog.open(log.root).refresh())


def seconds_of(work: Callable[[], object]) -> float:
    """The duration of a call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _median(work: Callable[[], object]) -> float:
    return median(seconds_of(work) for _ in range(_TIMES))


def scale_figures(found: Sequence[Growth]) -> dict[str, object]:
    """All times in ms, by what grows and by its size."""
    most = max(found, key=lambda growth: growth.factor)
    return {
        "largest_growth": round(most.factor, 1),
        "action_that_grows_most": f"{most.action} ({min(most.seconds):,} to {max(most.seconds):,} {most.by})",
        "growth": [
            {
                "by": growth.by,
                "action": growth.action,
                "ms": {str(size): _ms(seconds) for size, seconds in growth.seconds.items()},
                "growth": round(growth.factor, 1),
            }
            for growth in found
        ],
        **circumstances(),
    }


def scale_tables(found: Sequence[Growth]) -> list[list[Row]]:
    """A table for each thing that grows: one row an action, a column of ms for each size, and the growth of the time
    from the smallest size to the largest."""
    return [[_row(growth) for growth in group] for _, group in groupby(found, key=lambda growth: growth.by)]


def _row(growth: Growth) -> Row:
    sizes = {f"{size:,} {growth.by}, ms": _ms(seconds) for size, seconds in growth.seconds.items()}
    return {"action": growth.action, **sizes, "growth": round(growth.factor, 1)}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


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

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of partitions, and of the replica rows that were published."""
        self.cluster.metadata.refresh()
        return len(self.cluster.metadata.partitions), sum(len(table.replicas) for table in self._tables())

    def change_all_rows(self, lag: int) -> None:
        """Publishes every replica row again with another lag."""
        for table in self._tables():
            table.publish((replace(row, lag=lag) for row in table.replicas.values()), "bench")

    def _tables(self) -> list[ReplicaTable]:
        return [ReplicaTable.open(root) for root in self._roots.values()]

    def broker(self, number: int) -> ScaleBroker:
        """A new process of a broker."""
        return ScaleBroker(number, Cluster.open(self.uri), self._roots[number])


class ScaleBroker:
    """The replica manager of one broker, with its log and its table. Its fetchers fetch only in `fetch`."""

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
            self._writes, self._pause, self._quotas, lambda: self.cache.partitions,
        )  # fmt: skip
        states = SharedFetchStates()
        return _Fetcher(
            no_spark, self.number, key, StorageRoot.of(root), self._root.child("checkpoints"), self._cluster.config,
            states, FetchRunner(context, states), self._pause,
        )  # fmt: skip

    def take_up_roles(self) -> None:
        """Polls the metadata and takes up its roles."""
        self.cache.refresh()
        self.manager.apply()

    def lead(self) -> None:
        """Polls the followers and measures what they fetch, as each round of a broker does."""
        self.manager.lead()
        self._quotas.poll_followers(self.manager.leads, self.log.current())

    def fetch(self, lagging: Iterable[TopicIdPartition]) -> None:
        """Fetches until nothing is due. `lagging`: the partitions with new records. Without a stream a round
        reads the headers of these from the leader's snapshot."""
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
        self.states.fell_behind(lagging)
        while self._fetch():
            pass
