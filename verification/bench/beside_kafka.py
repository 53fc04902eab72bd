"""`bench kafka`: the same sends and reads by Lakelog and by a real Kafka, each with three brokers as processes.

Both have twelve partitions on three replicas, acks=all, two in-sync replicas at least, zstd at level 1 and local disks.
Neither waits for a disk (`fsync`), by default. Clients are Python: confluent-kafka, and Lakelog's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.progress import counting_bar
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.verification.bench.measuring import DataSet, bench_folder
from lakelog.verification.bench.produce import BROKERS, PARTITIONS, TOPIC
from lakelog.verification.bench.replication import circumstances, summary
from lakelog.verification.clusters.process_cluster import ProcessCluster
from lakelog.verification.roots.roots import LocalRoots

if TYPE_CHECKING:
    from lakelog.verification.clusters.kafka_cluster import KafkaCluster

_TIMEOUT_MS, WARM_UP = 120_000, "warm-up"
_SMALL, _TWENTY_MB = DataSet(PARTITIONS, 100), DataSet(20_000, 1000)
_CONFIGS = {"min.insync.replicas": 2}
SMALL, LARGE, READ = "acknowledged sends, small", "acknowledged sends, large", "reads of all partitions"


@dataclass(frozen=True)
class KafkaPlan:
    """The sends and reads of each side; some sends before them warm up and are not counted.

    Each side first sends to another topic for `warm_up_seconds`. The JVM compiles what runs often: a send to Kafka
    takes 50 ms at first, and 6 ms after 1,500 sends.
    """

    small_sends: int = 40
    large_sends: int = 10
    reads: int = 3
    warm_up_sends: int = 5
    warm_up_seconds: float = 45.0
    small: DataSet = _SMALL
    large: DataSet = _TWENTY_MB

    @property
    def steps(self) -> int:
        """The number of sends and reads of both sides, and one warm-up each."""
        return 2 * (1 + 2 * self.warm_up_sends + self.small_sends + self.large_sends + self.reads)


# Checks that the benchmark works. Its figures mean nothing.
QUICK_KAFKA = KafkaPlan(2, 2, 1, 1, 0.0, large=DataSet(500, 1000))


@dataclass
class Compared:
    """The seconds of each kind of work, by both sides, and whether both have the records that were sent, in order.
    `megabytes`: keys and values of a large send, and of all records, in 10^6 bytes."""

    lakelog: dict[str, list[float]] = field(default_factory=dict)
    kafka: dict[str, list[float]] = field(default_factory=dict)
    megabytes: dict[str, float] = field(default_factory=dict)
    rows_equal: bool = False
    kafka_version: str = ""


class Side(Protocol):
    """One of the two clusters."""

    def send(self, topic: str, table: pa.Table) -> None:
        """Sends records with the columns key, value and partition, until all are acknowledged."""

    def read(self) -> list[list[bytes]]:
        """The values of each partition of the topic, in order."""


def measure_beside_kafka(plan: KafkaPlan) -> Compared:
    """Starts both clusters, and does each step with one and then with the other. Shows a progress bar on stderr.

    Raises InvalidConfigurationException if Kafka's client is not installed, or as `running_kafka`.
    """
    try:
        from lakelog.verification.clusters.kafka_cluster import VERSION, running_kafka
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise InvalidConfigurationException("bench kafka needs Kafka's client: pip install '.[kafka]'") from error
    with bench_folder() as folder, counting_bar() as progress:
        task = progress.add_task("sending and reading", total=plan.steps)
        (folder / "kafka").mkdir()
        (folder / "lakelog").mkdir()
        with (
            running_kafka(folder / "kafka", BROKERS) as kafka,
            ProcessCluster(LocalRoots(folder / "lakelog"), folder / "lakelog", range(1, BROKERS + 1)) as cluster,
        ):
            cluster.start_all()
            sides = _Lakelog(cluster.uri), _Kafka(kafka)
            found = compare(plan, sides, lambda: progress.advance(task))
    found.kafka_version = VERSION
    return found


def compare(plan: KafkaPlan, sides: tuple[Side, Side], on_step: Callable[[], object]) -> Compared:
    """Does each step with the first side and then with the second one, and compares what both have."""
    return _Comparison(plan, sides, on_step).run()


class _Comparison:
    def __init__(self, plan: KafkaPlan, sides: tuple[Side, Side], on_step: Callable[[], object]) -> None:
        self._plan, self._sides, self._on_step = plan, sides, on_step
        self._found = Compared()
        self._expected: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._sent_bytes, self._seed = 0, 0

    def run(self) -> Compared:
        plan = self._plan
        for side in self._sides:
            self._warm_up(side)
        for name, data_set, count in ((SMALL, plan.small, plan.small_sends), (LARGE, plan.large, plan.large_sends)):
            for number in range(-plan.warm_up_sends, count):
                self._send(name, data_set, is_counted=number >= 0)
        self._found.megabytes = {LARGE: plan.large.records * plan.large.value_bytes / 1e6, READ: self._sent_bytes / 1e6}
        self._found.rows_equal = True
        for _ in range(plan.reads):
            for side, seconds in self._in_turn():
                started = time.perf_counter()
                rows = side.read()
                seconds.setdefault(READ, []).append(time.perf_counter() - started)
                self._found.rows_equal &= rows == self._expected
                self._on_step()
        return self._found

    def _warm_up(self, side: Side) -> None:
        table, until = _spread(self._plan.small.table()), time.monotonic() + self._plan.warm_up_seconds
        while time.monotonic() < until:
            side.send(WARM_UP, table)
        self._on_step()

    def _in_turn(self) -> Sequence[tuple[Side, dict[str, list[float]]]]:
        return tuple(zip(self._sides, (self._found.lakelog, self._found.kafka), strict=True))

    def _send(self, name: str, data_set: DataSet, is_counted: bool) -> None:
        self._seed += 1
        table = _spread(data_set.table(self._seed))
        for number in range(PARTITIONS):
            self._expected[number] += table["value"].to_pylist()[number::PARTITIONS]
        self._sent_bytes += table.select(["key", "value"]).nbytes
        for side, seconds in self._in_turn():
            started = time.perf_counter()
            side.send(TOPIC, table)
            if is_counted:
                seconds.setdefault(name, []).append(time.perf_counter() - started)
            self._on_step()


def _spread(table: pa.Table) -> pa.Table:
    numbers = pa.array([n % PARTITIONS for n in range(table.num_rows)], pa.int32())
    return table.append_column("partition", numbers)


class _Lakelog:
    def __init__(self, uri: str) -> None:
        for topic in (WARM_UP, TOPIC):
            AdminClient(uri).create_topic(topic, PARTITIONS, BROKERS, configs=_CONFIGS)
        self._producer, self._consumer = Producer(uri, acks="all"), Consumer(uri)

    def send(self, topic: str, table: pa.Table) -> None:
        raise_first_error(self._producer.send(topic, table, timeout_ms=_TIMEOUT_MS))

    def read(self) -> list[list[bytes]]:
        found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        offsets, is_read = dict.fromkeys(range(PARTITIONS), 0), False
        while not is_read:
            is_read = True
            for partition, fetched in self._consumer.fetch(TOPIC, offsets).items():
                if fetched.error is not None:
                    raise fetched.error
                found[partition] += fetched.records["value"].to_pylist()
                is_read &= fetched.next_offset == offsets[partition]
                offsets[partition] = fetched.next_offset
        return found


class _Kafka:
    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        for topic in (WARM_UP, TOPIC):
            cluster.create_topic(topic, PARTITIONS, _CONFIGS)
        configs = {"linger.ms": 0, "compression.level": 1, "batch.size": 1_000_000}
        self._producer = cluster.producer(**configs, **{"compression.type": "zstd"})

    def send(self, topic: str, table: pa.Table) -> None:
        columns = (table[name].to_pylist() for name in ("key", "value", "partition"))
        for key, value, partition in zip(*columns, strict=True):
            self._producer.produce(topic, value, key, partition)
        if self._producer.flush(_TIMEOUT_MS / 1000):
            raise TimeoutError("Kafka has not acknowledged all records")

    def read(self) -> list[list[bytes]]:
        return [[value or b"" for _, _, value in found] for found in self._cluster.read(TOPIC, PARTITIONS)]


def kafka_figures(found: Compared) -> dict[str, object]:
    """All figures. If rows differ, the times mean nothing and are left out."""
    if not found.rows_equal:
        return {"rows_equal": False, **circumstances()}
    return {
        "rows_equal": True,
        "kafka": found.kafka_version,
        **{f"{side}_seconds": {name: summary(each) for name, each in seconds.items()} for side, seconds in (
            ("lakelog", found.lakelog), ("kafka", found.kafka),
        )},
        **circumstances(),
    }  # fmt: skip


def kafka_rows(found: Compared) -> list[Row]:
    """A row for each kind of work; MB/s where the records are many."""
    rows = list[Row]()
    for name in found.lakelog:
        ours, theirs = (median(side[name]) for side in (found.lakelog, found.kafka))
        size = found.megabytes.get(name)
        row: Row = {"what": name, "lakelog_ms": round(ours * 1000), "kafka_ms": round(theirs * 1000)}
        rates = {"lakelog_mb_per_s": "", "kafka_mb_per_s": ""}
        if size is not None:
            rates = {"lakelog_mb_per_s": f"{size / ours:.0f}", "kafka_mb_per_s": f"{size / theirs:.0f}"}
        rows.append({**row, **rates})
    return rows
