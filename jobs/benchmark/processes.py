"""`bench processes`: three brokers and two controllers as processes of their own, as in production: how long they take
to start, what a small send costs, and what they cost while nothing happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow as pa

from lakelog.jobs.benchmark.cpu import cpu_seconds
from lakelog.jobs.benchmark.folder import bench_folder
from lakelog.jobs.benchmark.produce import BROKERS, PARTITIONS, TOPIC
from lakelog.jobs.benchmark.report import circumstances, summary
from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.waiting import wait_until
from lakelog.jobs.faults.cluster_processes import ClusterProcesses
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot

_TIMEOUT_MS, _START_SECONDS, _WARM_UP_SENDS = 120_000, 300.0, 5


@dataclass(frozen=True)
class Processes:
    """The times of a cluster of processes. `start_seconds`: until all brokers were registered. `core_seconds`: the CPU
    time of client, brokers and controllers for all measured sends. `idle_cores`: over `idle_seconds`. `rows_equal`:
    whether each partition has the records that were sent to it, in order."""

    start_seconds: float
    send_seconds: list[float]
    core_seconds: float
    idle_seconds: float
    idle_cores: float
    rows_equal: bool


def measure_processes(sends: int, idle_seconds: float) -> Processes:
    """Starts all processes together, and sends one record to each partition with acks=all, over and over: a few sends
    warm up. Then it leaves the cluster alone for `idle_seconds` without a count, and as long with one."""
    with bench_folder() as folder, counting_bar() as progress:
        task = progress.add_task("starting and sending", total=1 + _WARM_UP_SENDS + sends)
        cluster = _formatted(folder)
        processes = ClusterProcesses(folder, cluster.root.uri, range(1, BROKERS + 1))
        with processes.ended():
            start_seconds = _start(processes, cluster)
            progress.advance(task)
            load = _Load(cluster.root.uri, lambda: progress.advance(task))
            load.send(_WARM_UP_SENDS)
            before = cpu_seconds()
            taken = load.send(sends)
            core_seconds = cpu_seconds() - before
            is_equal, idle_cores = load.is_committed(), _idle_cores(idle_seconds)
            processes.check()
    return Processes(start_seconds, taken, core_seconds, idle_seconds, idle_cores, is_equal)


def _formatted(folder: Path) -> Cluster:
    root = StorageRoot.of(str(folder / "cluster"))
    format_cluster(root, Config())
    return Cluster.open(root.uri)


def _start(processes: ClusterProcesses, cluster: Cluster) -> float:
    def are_there() -> bool:
        processes.check()
        return len(cluster.refresh_brokers()) == BROKERS

    started = time.perf_counter()
    for process in processes.all():
        process.start()
    wait_until(are_there, "the brokers are registered", _START_SECONDS)
    return time.perf_counter() - started


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


def _idle_cores(seconds: float) -> float:
    pause = threading.Event()
    pause.wait(seconds)
    started, before = time.perf_counter(), cpu_seconds()
    pause.wait(seconds)
    return (cpu_seconds() - before) / (time.perf_counter() - started)


def processes_figures(found: Processes) -> dict[str, object]:
    """All figures. If rows differ, the times mean nothing and are left out."""
    if not found.rows_equal:
        return {"rows_equal": False, **circumstances()}
    return {
        "rows_equal": True,
        "start_seconds": round(found.start_seconds, 1),
        "small_send_ms": round(median(found.send_seconds) * 1000, 1),
        "small_send_core_seconds": round(found.core_seconds / len(found.send_seconds), 3),
        "idle_cores": round(found.idle_cores, 3),
        "idle_seconds": found.idle_seconds,
        "sends": summary(found.send_seconds),
        **circumstances(),
    }


def processes_rows(found: Processes) -> list[Row]:
    """One row for each of the three questions."""
    core_seconds = found.core_seconds / len(found.send_seconds)
    return [
        {"what": "started together, until registered", "seconds": f"{found.start_seconds:.1f}", "cores": ""},
        {
            "what": f"acknowledged send of {PARTITIONS} records",
            "seconds": f"{median(found.send_seconds):.3f}",
            "cores": f"{core_seconds:.2f} core-seconds",
        },
        {"what": "idle", "seconds": "", "cores": f"{found.idle_cores:.3f}"},
    ]
