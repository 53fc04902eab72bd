"""`bench replication --workers`: a follower catches up with thousands of segments between two object stores, while
Spark's standalone cluster has first one worker, then more. Rows are compared before times."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from pyspark.sql import SparkSession

from lakelog.jobs.benchmark.counting_store import ROOT, counting_store
from lakelog.jobs.benchmark.data import DataSet
from lakelog.jobs.benchmark.folder import bench_folder
from lakelog.jobs.benchmark.replication import checksum
from lakelog.jobs.benchmark.report import circumstances
from lakelog.jobs.benchmark.standalone import Standalone, standalone
from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.waiting import wait_until
from lakelog.jobs.launch.session import spark_session
from lakelog.replication.clients.record_set import record_set
from lakelog.replication.config import Config, Owner
from lakelog.replication.errors import LakelogException
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.protocol.append import PartitionAppend
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.storage.cluster import storage_root
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.append import append
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.producer_table import new_producer_id
from lakelog.schemas import LOG

LEADER, FOLLOWER = 1, 2
LATENCIES = {"PUT": 40, "GET": 25}  # milliseconds, about those of S3 within a region
_PATIENCE = 600.0
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class WorkersPlan:
    """The measurements. `data`: each record is in a segment of its own. `copy_bytes`: `lakelog.executor.copy.bytes`,
    which is as much smaller than its default as the segments are smaller than those of a busy topic."""

    workers: Sequence[int]  # each number is larger than the one before
    data: DataSet
    warm_up: DataSet
    copy_bytes: int


def workers_plan(workers: Sequence[int], is_quick: bool) -> WorkersPlan:
    """The plan for these numbers of workers. A quick one checks that the benchmark works: its figures mean nothing."""
    if is_quick:
        return WorkersPlan(workers, _segments(100), _segments(70), copy_bytes=1_000_000)
    return WorkersPlan(workers, _segments(2_000), _segments(200), copy_bytes=32 * 1024 * 1024)


def _segments(count: int) -> DataSet:
    return DataSet(count, 60_000, is_random=True)


@dataclass(frozen=True)
class CatchUps:
    """The seconds of each catch-up by the number of workers, and whether the follower had the leader's rows then."""

    data: DataSet
    seconds: Mapping[int, float]
    rows_equal: bool


def measure_workers(plan: WorkersPlan) -> CatchUps:
    """Measures one catch-up for each number of workers, after a smaller one that warms up."""
    with bench_folder() as folder, _two_stores(folder) as configs, counting_bar() as progress:
        task = progress.add_task("catching up", total=1 + len(plan.workers))
        with standalone(folder, plan.workers[0]) as workers, _session(workers) as spark:
            given = {**configs, "lakelog.executor.copy.bytes": plan.copy_bytes}
            roots: dict[Owner, str] = {broker: f"s3://bucket/{ROOT}/broker-{broker}" for broker in (LEADER, FOLLOWER)}
            with LocalCluster(spark, str(folder / "lake"), 2, given, roots=roots) as cluster:
                brokers, seconds = _Brokers(spark, cluster, Config.from_properties(given), folder), dict[int, float]()
                is_equal = brokers.catch_up("warm-up", plan.warm_up)[1]
                progress.advance(task)
                for before, count in pairwise((plan.workers[0], *plan.workers)):
                    workers.add_workers(count - before)
                    wait_until(partial(_has_executors, spark, count), f"{count} executors are there", _PATIENCE)
                    seconds[count], has_rows = brokers.catch_up(f"workers-{count}", plan.data)
                    is_equal &= has_rows
                    progress.advance(task)
    return CatchUps(plan.data, seconds, is_equal)


@contextmanager
def _two_stores(folder: Path) -> Iterator[dict[str, object]]:
    """Runs a store for each broker. Yields their options as settings of the roots."""
    with _store(folder, LEADER) as one, _store(folder, FOLLOWER) as other:
        yield {**one, **other}


@contextmanager
def _store(folder: Path, broker: int) -> Iterator[dict[str, object]]:
    own = _of(folder, broker)
    own.mkdir()
    with counting_store(own, LATENCIES) as (_, options):
        yield {f"storage.{broker}.{name}": value for name, value in options.items()}


def _of(folder: Path, broker: int) -> Path:
    return folder / f"store-{broker}"


def _has_executors(spark: SparkSession, count: int) -> bool:
    return len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) == count + 1  # one is the driver


@contextmanager
def _session(workers: Standalone) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers have this machine's files
    spark = spark_session("lakelog bench", workers.master, {"spark.executor.memory": "512m"})
    try:
        yield spark
    finally:
        spark.stop()


class _Brokers:
    """A leader and a follower of topics with one partition."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, config: Config, folder: Path) -> None:
        self._spark, self._cluster, self._config, self._folder = spark, cluster, config, folder
        self._admin = cluster.admin()

    def catch_up(self, topic: str, data: DataSet) -> tuple[float, bool]:
        """Lets the leader have a new topic, and then the follower begin with it. Returns the seconds until the follower
        has all, and whether its rows are those of the leader."""
        self._admin.create_topic(topic, assignment={0: (LEADER,)})
        (partition,) = self._admin.describe_topic(topic).partitions
        self._append(partition, data)
        copy = ReplicaLog.open(self._local_log(FOLLOWER))

        def has_all() -> bool:
            return copy.refresh().known(partition.topic_id_partition).log_end_offset == data.records

        started = time.perf_counter()
        self._admin.alter_partition_reassignments({(topic, 0): (LEADER, FOLLOWER)})
        wait_until(has_all, f"broker {FOLLOWER} has {data.records} segments of {topic}", _PATIENCE, _LOOK_SECONDS)
        seconds = time.perf_counter() - started
        led, followed = (self._rows(broker, topic) for broker in (LEADER, FOLLOWER))
        return seconds, led == followed and led["records"] == data.records

    def _append(self, partition: PartitionRegistration, data: DataSet) -> None:
        """Commits through the store, but writes the segments into the store's folder: that part is not measured."""
        request = PartitionAppend(
            partition.topic, partition.topic_id, 0, partition.replicas, partition.leader_epoch, data.records,
            new_producer_id(), producer_epoch=0, base_sequence=0,
        )  # fmt: skip
        root = storage_root(self._cluster.broker_uri(LEADER), LEADER, self._config)
        log = ReplicaLog.open(root.child(LOG.name))
        with record_set(partition.topic, data.table(), 1, data.value_bytes) as given:
            write = given.writer(self._local_log(LEADER), LEADER, [request])
            for outcome in append(log, [request], write, lambda *_: (), "bench").values():
                if isinstance(outcome, LakelogException):
                    raise outcome

    def _local_log(self, broker: int) -> StorageRoot:
        """The folder in which a broker's store has its log."""
        uri = self._cluster.broker_uri(broker)
        return StorageRoot.of(str(_of(self._folder, broker) / uri.removeprefix("s3://"))).child(LOG.name)

    def _rows(self, broker: int, topic: str) -> Row:
        log = self._spark.read.format("delta").load(self._local_log(broker).spark_uri)
        return checksum(log.where(log.topic == topic)).collect()[0].asDict()


def workers_figures(found: CatchUps) -> dict[str, object]:
    """All figures. If rows differ, the times mean nothing and are left out."""
    if not found.rows_equal:
        return {"rows_equal": False, **circumstances()}
    return {
        "rows_equal": True,
        "segments": found.data.records,
        "segment_bytes": found.data.value_bytes,
        "latencies_ms": LATENCIES,
        "seconds_by_workers": {str(count): round(seconds, 1) for count, seconds in found.seconds.items()},
        "most_workers_vs_fewest": round(_times(found)[-1], 2),
        **circumstances(),
    }


def workers_rows(found: CatchUps) -> list[Row]:
    """One row for each number of workers."""
    each = zip(found.seconds.items(), _times(found), strict=True)
    return [
        {
            "workers": count,
            "seconds": f"{seconds:.1f}",
            "segments a second": f"{found.data.records / seconds:.0f}",
            "as fast as the first": f"{times:.1f} times",
        }
        for (count, seconds), times in each
    ]


def _times(found: CatchUps) -> list[float]:
    seconds = list(found.seconds.values())
    return [seconds[0] / each for each in seconds]
