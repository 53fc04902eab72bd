"""`bench requests`: the requests of a cluster in an object store, while it is idle and for each acknowledged send."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.config import Config
from lakelog.replication.local_cluster import LocalCluster
from lakelog.verification.bench.counting_store import ROOT, Counted, counting_store
from lakelog.verification.bench.folder import bench_folder
from lakelog.verification.bench.produce_run import TOPIC

REPLICAS = 3
_TIMEOUT_MS = 120_000
_PATIENCE = 120.0
_WARM_UP_SENDS = 3
_SETTLING_SECONDS = 25.0  # the followers' streams begin; after the sends, polls become as rare as they get


@dataclass(frozen=True)
class RequestsPlan:
    """The clusters to measure, one for each pair of brokers and partitions, and the settings of each."""

    brokers: Sequence[int] = (3,)
    partitions: Sequence[int] = (3,)
    controllers: int = 2
    seconds: float = 60.0
    sends: int = 10
    configs: Mapping[str, object] = field(default_factory=dict)
    latencies: Mapping[str, int] = field(default_factory=dict)  # milliseconds, by kind of request

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The pairs of brokers and partitions."""
        return [(brokers, partitions) for brokers in self.brokers for partitions in self.partitions]


@dataclass(frozen=True)
class Requests:
    """The requests of one cluster: while it was idle, and during sends of one record a partition, polls included."""

    brokers: int
    controllers: int
    partitions: int
    idle_seconds: float
    idle: Counter[Counted]
    sends: int
    send_seconds: float
    sent: Counter[Counted]
    rows_equal: bool


def measure_requests(spark: SparkSession, plan: RequestsPlan) -> list[Requests]:
    """Measures one cluster after another, each in a store of its own, with a progress bar on stderr."""
    found = []
    with counting_bar() as progress:
        task = progress.add_task("counting", total=len(plan.sizes))
        for brokers, partitions in plan.sizes:
            found.append(_measure(spark, plan, brokers, partitions))
            progress.advance(task)
    return found


def _measure(spark: SparkSession, plan: RequestsPlan, brokers: int, partitions: int) -> Requests:
    with bench_folder() as folder, counting_store(folder, plan.latencies) as (store, options):
        owners = ("cluster", *range(1, brokers + 1))
        access = {f"storage.{owner}.{name}": value for owner in owners for name, value in options.items()}
        configs = {**access, **plan.configs}
        with LocalCluster(spark, f"s3://bucket/{ROOT}", brokers, configs, plan.controllers) as cluster:
            cluster.admin().create_topic(TOPIC, partitions, min(brokers, REPLICAS))
            sender = _Sender(cluster.cluster_uri, Config.from_properties(configs), partitions)
            sender.send()
            _settle(plan)
            for _ in range(_WARM_UP_SENDS):  # polls are rare after a quiet time; these make them frequent again
                sender.send()
            with _counting(lambda: store.counts(options)) as (sent, took):
                for _ in range(plan.sends):
                    sender.send()
            _settle(plan)
            with _counting(lambda: store.counts(options)) as (idle, lasted):
                threading.Event().wait(plan.seconds)
            is_equal = sender.has_all(cluster)
        return Requests(
            brokers, plan.controllers, partitions, lasted[0], idle, plan.sends, took[0], sent, is_equal
        )  # fmt: skip


def _settle(plan: RequestsPlan) -> None:
    threading.Event().wait(min(_SETTLING_SECONDS, plan.seconds))


@contextmanager
def _counting(counts: Callable[[], Counter[Counted]]) -> Iterator[tuple[Counter[Counted], list[float]]]:
    """After the block: the requests in it, and its seconds."""
    found, lasted = Counter[Counted](), list[float]()
    started, before = time.perf_counter(), counts()
    yield found, lasted
    lasted.append(time.perf_counter() - started)
    found.update(counts() - before)


class _Sender:
    """Sends one record to each partition, and compares the committed records with those sent."""

    def __init__(self, cluster_uri: str, config: Config, partitions: int) -> None:
        self._producer = Producer(cluster_uri, acks="all", config=config)
        self._partitions = range(partitions)
        self._count = 0

    def send(self) -> None:
        """One acknowledged send."""
        records = [{"partition": p, "value": f"{p}-{self._count}"} for p in self._partitions]
        raise_first_error(self._producer.send(TOPIC, records, timeout_ms=_TIMEOUT_MS))
        self._count += 1

    def has_all(self, cluster: LocalCluster) -> bool:
        """Whether the committed records of each partition are those sent, in order."""
        consumer = cluster.consumer()
        for partition in self._partitions:
            expected = [f"{partition}-{number}".encode() for number in range(self._count)]
            read: list[bytes] = []

            def complete(partition: int = partition, read: list[bytes] = read) -> bool:
                fetched = consumer.fetch(TOPIC, {partition: len(read)})[partition]
                read.extend(fetched.records["value"].to_pylist())
                return len(read) >= self._count

            wait_until(complete, f"the records of partition {partition}", _PATIENCE)
            if read != expected:
                return False
        return True
