"""`bench requests`: the requests of a cluster in an object store, while it is idle and for each acknowledged send."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from lakelog.jobs.admin.doctor_findings import MONTH_SECONDS
from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.config import Config, Owner
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.protocol.topic import BROKER_TYPE, Entity
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.store_requests import DOLLARS
from lakelog.verification.bench.counting_store import KINDS, ROOT, Counted, counting_store
from lakelog.verification.bench.measuring import bench_folder
from lakelog.verification.bench.produce import TOPIC
from lakelog.verification.bench.replication import circumstances

REPLICAS = 3
_TIMEOUT_MS = 120_000
_PATIENCE = 120.0
_WARM_UP_SENDS = 3
_SETTLING_SECONDS = 25.0  # the followers' streams begin; after the sends, polls become as rare as they get
ALL = "all"
_BETWEEN_COMMITS_SECONDS = 1.1  # so old a view of a table may be that a commit begins with, and a bit more
_NO_BROKER, _SETTING = Entity(BROKER_TYPE, "999"), "leader.replication.throttled.rate"
_SUMMARY = ("idle_per_second", "idle_dollars_a_month", "per_send")


@dataclass(frozen=True)
class RequestsPlan:
    """The clusters to measure, one for each combination of brokers, partitions and cluster roots, and the settings of
    each."""

    brokers: Sequence[int] = (3,)
    partitions: Sequence[int] = (3,)
    controllers: int = 2
    seconds: float = 60.0
    sends: int = 10
    configs: Mapping[str, object] = field(default_factory=dict)
    latencies: Mapping[str, int] = field(default_factory=dict)  # milliseconds, by kind of request
    cluster_roots: Sequence[int] = (1,)

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """The combinations of brokers, partitions and cluster roots."""
        return list(product(self.brokers, self.partitions, self.cluster_roots))


@dataclass(frozen=True)
class Requests:
    """The requests of one cluster: while it was idle, and during sends of one record a partition, polls included.
    `commit_seconds`: a commit of metadata by the writer of the one before, and by another writer."""

    brokers: int
    controllers: int
    partitions: int
    idle_seconds: float
    idle: Counter[Counted]
    sends: int
    send_seconds: float
    sent: Counter[Counted]
    rows_equal: bool
    cluster_roots: int = 1
    commit_seconds: tuple[float, float] | None = None


def measure_requests(spark: SparkSession, plan: RequestsPlan) -> list[Requests]:
    """Measures one cluster after another, each in a store of its own, with a progress bar on stderr."""
    found = []
    with counting_bar() as progress:
        task = progress.add_task("counting", total=len(plan.sizes))
        for size in plan.sizes:
            found.append(_measure(spark, plan, *size))
            progress.advance(task)
    return found


def _measure(spark: SparkSession, plan: RequestsPlan, brokers: int, partitions: int, cluster_roots: int) -> Requests:
    with bench_folder() as folder, counting_store(folder, plan.latencies) as (store, options):
        owners = ("cluster", *range(1, brokers + 1))
        access = {f"storage.{owner}.{name}": value for owner in owners for name, value in options.items()}
        configs = {**access, **plan.configs}
        uri = f"s3://bucket/{ROOT}"
        roots: dict[Owner, str] = {
            "cluster": ",".join(f"{uri}/cluster{number or ''}" for number in range(cluster_roots))
        }
        with LocalCluster(spark, uri, brokers, configs, plan.controllers, roots=roots) as cluster:
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
            writers = _Writers(cluster.cluster_uri, configs)
            seconds = writers.same(plan.sends), writers.another(plan.sends)
            is_equal = sender.has_all(cluster) and writers.have_all()
        return Requests(
            brokers, plan.controllers, partitions, lasted[0], idle, plan.sends, took[0], sent, is_equal,
            cluster_roots, seconds,
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


class _Writers:
    """Two writers of the table `configs`, whose view of the store is not the same, as if each were a process."""

    def __init__(self, cluster_uri: str, configs: Mapping[str, object]) -> None:
        agents: tuple[dict[str, object], ...] = ({}, {"storage.cluster.user_agent": "another writer"})
        self._tables = [
            Cluster.open(cluster_uri, Config.from_properties({**configs, **agent})).configs for agent in agents
        ]
        self._count = 0

    def same(self, commits: int) -> float:
        """The median seconds of a commit by the writer of the one before."""
        self._commit(0)
        return median(self._commit(0) for _ in range(commits))

    def another(self, commits: int) -> float:
        """The median seconds of a commit by another writer than that of the one before."""
        return median(self._commit(number % 2) for number in range(1, commits + 1))

    def _commit(self, writer: int) -> float:
        threading.Event().wait(_BETWEEN_COMMITS_SECONDS)
        self._count += 1
        started = time.perf_counter()
        self._tables[writer].change({_NO_BROKER: {_SETTING: str(self._count)}}, {"who": "bench", "why": "commit"})
        return time.perf_counter() - started

    def have_all(self) -> bool:
        """Whether each writer sees the last commit."""
        for table in self._tables:
            table.refresh()
        return all(table.configs[_NO_BROKER] == {_SETTING: str(self._count)} for table in self._tables)


def requests_figures(found: Sequence[Requests]) -> dict[str, object]:
    """All figures. If rows differ, the counts mean nothing and are left out."""
    if not all(each.rows_equal for each in found):
        return {"rows_equal": False, **circumstances()}
    clusters = [_figures(each) for each in found]
    return {
        "rows_equal": True,
        "prices_per_million": DOLLARS,
        **{f"most_{name}": max(cluster[name] for cluster in clusters) for name in _SUMMARY},
        "clusters": clusters,
        **circumstances(),
    }


def _figures(found: Requests) -> dict[str, Any]:
    per_second = _divided(found.idle, found.idle_seconds)
    per_send = _divided(found.sent, found.sends)
    idle, sent = sum(per_second.values()), sum(per_send.values())
    polls = idle * found.send_seconds / found.sends if found.sends else 0.0
    return {
        "brokers": found.brokers,
        "controllers": found.controllers,
        "partitions": found.partitions,
        "cluster_roots": found.cluster_roots,
        "idle_seconds": round(found.idle_seconds, 1),
        "idle_per_second": round(idle, 2),
        "idle_dollars_a_month": round(dollars_a_month(per_second), 2),
        "sends": found.sends,
        "per_send": round(sent, 1),
        "per_send_beside_polls": round(max(0.0, sent - polls), 1),
        "dollars_a_million_sends": round(_dollars(per_send), 2),
        **_times(found),
        "idle_by_table": _by_table(per_second),
        "sends_by_table": _by_table(per_send),
    }


def _times(found: Requests) -> dict[str, int]:
    """Milliseconds of what was measured."""
    times = {"send_ms": round(1000 * found.send_seconds / found.sends)} if found.sends else {}
    if found.commit_seconds:
        same, another = found.commit_seconds
        times |= {"commit_ms": round(1000 * same), "commit_of_another_writer_ms": round(1000 * another)}
    return times


def _divided(counts: Counter[Counted], by: float) -> dict[Counted, float]:
    return {what: count / by for what, count in counts.items()} if by else {}


def _dollars(per_unit: Mapping[Counted, float]) -> float:
    """Dollars of a million units."""
    return sum(count * DOLLARS[what.kind] for what, count in per_unit.items())


def dollars_a_month(per_second: Mapping[Counted, float]) -> float:
    """The cost of these requests a second for 30 days."""
    return _dollars(per_second) * MONTH_SECONDS / 1e6


def _by_table(per_unit: Mapping[Counted, float]) -> list[dict[str, object]]:
    """One object for each table and part, those with most requests first."""
    totals: Counter[tuple[str, str]] = Counter()
    for what, count in per_unit.items():
        totals[what.table, what.part] += count  # type: ignore[assignment]
    return [
        {"table": table, "part": part, **_kinds(per_unit, table, part), ALL: round(total, 2)}
        for (table, part), total in totals.most_common()
    ]


def _kinds(per_unit: Mapping[Counted, float], table: str, part: str) -> dict[str, float]:
    return {kind: round(per_unit.get(Counted(kind, table, part), 0.0), 2) for kind in KINDS}


def requests_rows(found: Sequence[Requests]) -> list[Row]:
    """For each cluster the rows of its tables, idle and for each send, with a row of their sums."""
    rows: list[Row] = []
    for each in found:
        idle, sent = _divided(each.idle, each.idle_seconds), _divided(each.sent, each.sends)
        month, million = dollars_a_month(idle), _dollars(sent)
        rows += _rows(each, "a second, idle", idle, f"${month:,.0f} a month")
        rows += _rows(each, "a send", sent, f"${million:,.0f} a million sends")
        for name, ms in _times(each).items():
            rows.append({**_row(each, name.removesuffix("_ms").replace("_", " "), ALL, [], {}), "cost": f"{ms} ms"})
    return rows


def _rows(found: Requests, unit: str, per_unit: Mapping[Counted, float], cost: str) -> list[Row]:
    tables = sorted({what.table for what in per_unit})
    shown = [_row(found, unit, table, [what for what in per_unit if what.table == table], per_unit) for table in tables]
    return [*shown, {**_row(found, unit, ALL, list(per_unit), per_unit), "cost": cost}]


def _row(
    found: Requests, unit: str, table: str, of: Sequence[Counted], per_unit: Mapping[Counted, float]
) -> dict[str, object]:
    by_kind = {kind: sum(per_unit[what] for what in of if what.kind == kind) for kind in KINDS}
    return {
        "brokers": found.brokers,
        "partitions": found.partitions,
        "cluster_roots": found.cluster_roots,
        "requests": unit,
        "table": table,
        **{kind: f"{count:.1f}" for kind, count in by_kind.items()},
        ALL: f"{sum(by_kind.values()):.1f}",
        "cost": "",
    }
