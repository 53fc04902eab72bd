"""`bench replication --workers`: a follower catches up with thousands of segments between two object stores, while
Spark's standalone cluster has first one worker, then more. Rows are compared before times."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.waiting import wait_until
from lakelog.jobs.launch.session import job_session
from lakelog.jobs.launch.spark_submit import spark_home
from lakelog.replication.clients.record_set import record_set
from lakelog.replication.config import Config, Owner
from lakelog.replication.errors import LakelogException
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.protocol.append import PartitionAppend
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.storage.cluster import storage_root
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_append import append
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.producer_table import new_producer_id
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from lakelog.verification.bench.counting_store import ROOT, counting_store
from lakelog.verification.bench.measuring import DataSet, bench_folder
from lakelog.verification.bench.replication import circumstances

LEADER, FOLLOWER = 1, 2
LATENCIES = {"PUT": 40, "GET": 25}  # milliseconds, about those of S3 within a region
_NEVER = 1_000_000  # compaction would leave fewer segments to the next catch-up
_PATIENCE = 600.0
_POLL_SECONDS = 0.05
_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_SECONDS = 180.0
_LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1"}  # the web pages too


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
    return WorkersPlan(workers, _segments(2_000), _segments(200), copy_bytes=4 * 1024 * 1024)


def _segments(count: int) -> DataSet:
    return DataSet(count, 20_000, is_random=True)


@dataclass(frozen=True)
class CatchUps:
    """The seconds of each catch-up by the number of workers, and whether the follower had the leader's rows then."""

    data: DataSet
    seconds: Mapping[int, float]
    rows_equal: bool


def measure_workers(plan: WorkersPlan) -> CatchUps:
    """Measures one catch-up for each number of workers, after a smaller one, with which the workers warm up."""
    with bench_folder() as folder, _two_stores(folder) as configs, counting_bar() as progress:
        task = progress.add_task("catching up", total=1 + len(plan.workers))
        with standalone(folder, plan.workers[0]) as workers, _session(workers) as spark:
            given = {**configs, "lakelog.executor.copy.bytes": plan.copy_bytes, "log.cleaner.min.files": _NEVER}
            roots: dict[Owner, str] = {broker: f"s3://bucket/{ROOT}/broker-{broker}" for broker in (LEADER, FOLLOWER)}
            with LocalCluster(spark, str(folder / "lake"), 2, given, roots=roots) as cluster:
                brokers, seconds = _Brokers(cluster, Config.from_properties(given), folder), dict[int, float]()
                small, led = brokers.lead("warm-up", plan.warm_up), brokers.lead("catch-up", plan.data)
                is_equal = True
                progress.advance(task)
                for before, count in pairwise((plan.workers[0], *plan.workers)):
                    workers.add_workers(count - before)
                    wait_until(partial(_has_executors, spark, count), f"{count} executors are there", _PATIENCE)
                    has_small = brokers.catch_up("warm-up", small)[1]
                    seconds[count], has_all = brokers.catch_up("catch-up", led)
                    is_equal &= has_small and has_all
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
    spark = job_session("lakelog bench", workers.master, {"spark.executor.memory": "512m"})
    try:
        yield spark
    finally:
        spark.stop()


class _Brokers:
    """A leader and a follower of topics with one partition."""

    def __init__(self, cluster: LocalCluster, config: Config, folder: Path) -> None:
        self._cluster, self._config, self._folder = cluster, config, folder
        self._admin = cluster.admin()

    def lead(self, topic: str, data: DataSet) -> pa.Table:
        """Lets the leader have a new topic with these records, and returns its rows. The follower has none of it."""
        self._admin.create_topic(topic, assignment={0: (LEADER,)})
        self._append(self._partition(topic), data)
        return self._rows(LEADER, topic)

    def catch_up(self, topic: str, led: pa.Table) -> tuple[float, bool]:
        """Lets the follower begin with a topic, and give it up again. Returns the seconds until it had all, and whether
        its rows were those that the leader has, `led`."""
        started = time.perf_counter()
        self._reassign(topic, (LEADER, FOLLOWER), led.num_rows)
        seconds = time.perf_counter() - started
        is_equal = led.num_rows > 0 and led.equals(self._rows(FOLLOWER, topic))
        self._reassign(topic, (LEADER,), 0)
        return seconds, is_equal

    def _partition(self, topic: str) -> PartitionRegistration:
        (partition,) = self._admin.describe_topic(topic).partitions
        return partition

    def _reassign(self, topic: str, replicas: tuple[int, ...], segments: int) -> None:
        """Returns once the follower's rows show that it has so many segments of the topic, each of one record."""
        partition, table = self._partition(topic).topic_id_partition, ReplicaTable.open(self._local_root(FOLLOWER))

        def has_them() -> bool:
            table.refresh()
            row = table.replicas.get(partition)
            return (row.log_end_offset if row else 0) == segments

        self._admin.alter_partition_reassignments({(topic, 0): replicas})
        wait_until(has_them, f"broker {FOLLOWER} has {segments} segments of {topic}", _PATIENCE, _POLL_SECONDS)

    def _append(self, partition: PartitionRegistration, data: DataSet) -> None:
        """Commits through the store, but writes the segments into the store's folder: that part is not measured."""
        request = PartitionAppend(
            partition.topic, partition.topic_id, 0, partition.replicas, partition.leader_epoch, data.records,
            new_producer_id(), producer_epoch=0, base_sequence=0,
        )  # fmt: skip
        root = storage_root(self._cluster.broker_uri(LEADER), LEADER, self._config)
        log = ReplicaLog.open(root.child(LOG.name))
        with record_set(partition.topic, data.table(), 1, data.value_bytes) as given:
            write = partial(given.write, self._local_log(LEADER), LEADER, [request])
            for outcome in append(log, [request], write, lambda *_: (), "bench").values():
                if isinstance(outcome, LakelogException):
                    raise outcome

    def _local_root(self, broker: int) -> StorageRoot:
        """The folder in which a broker's store has its root."""
        return StorageRoot.of(str(_of(self._folder, broker) / self._cluster.broker_uri(broker).removeprefix("s3://")))

    def _local_log(self, broker: int) -> StorageRoot:
        return self._local_root(broker).child(LOG.name)

    def _rows(self, broker: int, topic: str) -> pa.Table:
        """A broker's records of a topic, in order."""
        log = DeltaTable(self._local_log(broker).uri).to_pyarrow_dataset()
        return log.to_table(filter=pc.field("topic") == topic).sort_by("offset")


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


class Standalone:
    """A cluster that runs. `master`: the URI of its master. `folder`: has its logs and those of its executors."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.master = folder, ""
        self._log = folder / "master.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Starts the master. Raises TimeoutException if it does not start in time."""
        self._start("master", "master.Master", "--port", "0")
        wait_until(lambda: _STARTED.search(self._log.read_text()) is not None, "the master starts", _SECONDS)
        self.master = _STARTED.findall(self._log.read_text())[0]

    def add_workers(self, number: int) -> None:
        """Starts workers with 1 core and 1 GB each. Raises TimeoutException if they do not register in time."""
        for _ in range(number):
            name = f"worker-{len(self._processes)}"
            words = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name), self.master)
            self._start(name, "worker.Worker", *words)
        all_workers = len(self._processes) - 1
        registered = "Registering worker"
        wait_until(lambda: self._log.read_text().count(registered) == all_workers, "the workers register", _SECONDS)

    def stop(self) -> None:
        """Ends all processes."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(_SECONDS)

    def _start(self, name: str, kind: str, *words: str) -> None:
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        environment = {**os.environ, "SPARK_HOME": str(spark_home()), "SPARK_NO_DAEMONIZE": "1", **_LOOPBACK}
        environment.pop("SPARK_CONF_DIR", None)  # a master logs at a level that Lakelog's own folder leaves out
        with (self.folder / f"{name}.log").open("wb") as file:
            process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--webui-port", "0", *words],
                stdout=file, stderr=subprocess.STDOUT, env=environment,
            )  # fmt: skip
        self._processes.append(process)


@contextmanager
def standalone(folder: Path, workers: int) -> Iterator[Standalone]:
    """Runs a master, and workers with 1 core and 1 GB each, on the loopback interface."""
    cluster = Standalone(folder)
    try:
        cluster.start()
        cluster.add_workers(workers)
        yield cluster
    finally:
        cluster.stop()
