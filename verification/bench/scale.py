"""`bench scale`: how the time of one change grows with the size of the whole, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from lakelog.jobs.cli.progress import counting_bar
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol import partition_log
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from lakelog.verification.bench.controller import measure_controller
from lakelog.verification.bench.folder import bench_folder
from lakelog.verification.bench.scale_cluster import LEADER, ScaleBroker, ScaleCluster
from lakelog.verification.bench.small_commits import SmallCommits

PARTITIONS, TOPICS, BROKERS, FILES, COMMITS = "partitions", "topics", "brokers", "data files", "commits"
_TIMES = 5
_LOOKS = 20


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


Times = Iterator[tuple[str, float]]  # an action, and its seconds


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
    yield "leader: looks, nothing new", _median(leader.lead)
    yield "broker: looks at the metadata, nothing new", _median(leader.cache.refresh)
    yield "broker: opens its log and reads its roles", seconds_of(lambda: _open_log(leader))
    yield "client: opens the cluster's tables", seconds_of(lambda: _open_tables(cluster, leader))


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
            "leader: looks, a row is new": leader.lead,
            "leader: publishes a HW": lambda: leader.manager.publish("high watermark"),
        }
        for action, work in rounds.items():
            if action.startswith("leader: looks"):
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
    for _ in range(_LOOKS):  # a look does not wait for a follower's table that takes long to read
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
