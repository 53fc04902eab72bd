"""`bench processes` runs three brokers and two controllers as processes of their own, as in production. It measures
their start, a small send, and the CPU use of the idle cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import pyarrow as pa
from pyspark.sql import SparkSession

from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.progress import counting_bar
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.local_cluster import LocalCluster
from lakelog.verification.bench.measuring import bench_folder, cores_while_idle, cpu_seconds
from lakelog.verification.bench.produce import BROKERS, PARTITIONS, TOPIC
from lakelog.verification.bench.replication import circumstances, summary
from lakelog.verification.clusters.process_cluster import ProcessCluster
from lakelog.verification.roots.roots import LocalRoots

_TIMEOUT_MS, _WARM_UP_SENDS = 120_000, 5


@dataclass(frozen=True)
class ProcessTimes:
    """The times of a cluster of processes. `start_seconds`: until all servers were there. `core_seconds`: the CPU
    time of client, brokers and controllers for all measured sends. `idle_cores`: over `idle_seconds`. `rows_equal`:
    whether each partition has the records that were sent to it, in order."""

    start_seconds: float
    send_seconds: list[float]
    core_seconds: float
    idle_seconds: float
    idle_cores: float
    rows_equal: bool

    @property
    def send_core_seconds(self) -> float:
        """The CPU time of a send."""
        return self.core_seconds / len(self.send_seconds)


def measure_processes(sends: int, idle_seconds: float) -> ProcessTimes:
    """Starts all processes together, and sends one record to each partition with acks=all, over and over: a few sends
    warm up. Then it leaves the cluster alone for `idle_seconds` without a count, and as long with one."""
    with bench_folder() as folder, counting_bar() as progress:
        task = progress.add_task("starting and sending", total=1 + _WARM_UP_SENDS + sends)
        with ProcessCluster(LocalRoots(folder), folder, range(1, BROKERS + 1)) as cluster:
            started = time.perf_counter()
            cluster.start_all()
            start_seconds = time.perf_counter() - started
            progress.advance(task)
            load = _Load(cluster.uri, lambda: progress.advance(task))
            load.send(_WARM_UP_SENDS)
            before = cpu_seconds()
            taken = load.send(sends)
            core_seconds = cpu_seconds() - before
            is_equal, idle_cores = load.is_committed(), cores_while_idle(idle_seconds)
            cluster.check()
    return ProcessTimes(start_seconds, taken, core_seconds, idle_seconds, idle_cores, is_equal)


class _Load:
    """Sends one record to each partition of a new topic."""

    def __init__(self, uri: str, on_step: Callable[[], object]) -> None:
        AdminClient(uri).create_topic(TOPIC, PARTITIONS, BROKERS)
        self._producer, self._consumer = Producer(uri, acks="all"), Consumer(uri)
        self._on_step, self._sent = on_step, 0

    def send(self, count: int) -> list[float]:
        """Sends `count` times. Returns the seconds until each send was acknowledged."""
        return [self._send() for _ in range(count)]

    def _send(self) -> float:
        values = [_value(partition, self._sent) for partition in range(PARTITIONS)]
        records = pa.table({"value": values, "partition": pa.array(range(PARTITIONS), pa.int32())})
        started = time.perf_counter()
        raise_first_error(self._producer.send(TOPIC, records, timeout_ms=_TIMEOUT_MS))
        self._sent += 1
        self._on_step()
        return time.perf_counter() - started

    def is_committed(self) -> bool:
        """Whether each partition has what was sent to it, once, in order."""
        fetched = self._consumer.fetch(TOPIC, dict.fromkeys(range(PARTITIONS), 0))
        return all(
            found.error is None
            and found.records["value"].to_pylist() == [_value(partition, number) for number in range(self._sent)]
            for partition, found in fetched.items()
        )


def _value(partition: int, number: int) -> bytes:
    return b"%d-%d" % (partition, number)


def processes_figures(found: ProcessTimes) -> dict[str, object]:
    """All figures. If rows differ, the times mean nothing and are left out."""
    if not found.rows_equal:
        return {"rows_equal": False, **circumstances()}
    return {
        "rows_equal": True,
        "start_seconds": round(found.start_seconds, 1),
        "small_send_ms": round(median(found.send_seconds) * 1000, 1),
        "small_send_core_seconds": round(found.send_core_seconds, 3),
        "idle_cores": round(found.idle_cores, 3),
        "idle_seconds": found.idle_seconds,
        "sends": summary(found.send_seconds),
        **circumstances(),
    }


def processes_rows(found: ProcessTimes) -> list[Row]:
    """One row for the start, one for a send, one for the idle cluster."""
    sent, send = f"acknowledged send of {PARTITIONS} records", median(found.send_seconds)
    return [
        _row("start of all processes, until the brokers are registered", f"{found.start_seconds:.1f}"),
        _row(sent, f"{send:.3f}", f"{found.send_core_seconds:.2f}"),
        _row("idle", cores=f"{found.idle_cores:.3f}"),
    ]


def _row(what: str, seconds: str = "", core_seconds: str = "", cores: str = "") -> Row:
    return {"what": what, "seconds": seconds, "core-seconds": core_seconds, "cores": cores}


@dataclass(frozen=True)
class Idle:
    """The cores that a session used, alone and with three brokers and a controller, each over `seconds`."""

    seconds: float
    session_cores: float
    cluster_cores: float


def measure_idle(spark: SparkSession, seconds: float) -> Idle:
    """Measures each for `seconds`, after as many seconds without a count: a session is busy after each start."""
    alone = cores_while_idle(seconds)
    with bench_folder() as folder, LocalCluster(spark, str(folder), BROKERS) as cluster:
        cluster.admin().create_topic(TOPIC, PARTITIONS, BROKERS)
        raise_first_error(Producer(cluster.cluster_uri).send(TOPIC, ["a record"], timeout_ms=120_000))
        return Idle(seconds, alone, cores_while_idle(seconds))


def idle_figures(found: Idle) -> dict[str, object]:
    """All figures."""
    return {
        "seconds": found.seconds,
        "session_cores": round(found.session_cores, 3),
        "cluster_cores": round(found.cluster_cores, 3),
        "brokers_cores": round(found.cluster_cores - found.session_cores, 3),
        **circumstances(),
    }


def idle_rows(found: Idle) -> list[Row]:
    """One row for what was idle."""
    return [
        {"idle": "a Spark session", "cores": f"{found.session_cores:.3f}"},
        {"idle": f"with {BROKERS} brokers, {PARTITIONS} partitions", "cores": f"{found.cluster_cores:.3f}"},
    ]
