"""`bench profile`: where the time of an acknowledged send goes, and that of one micro-batch, in ms and in core ms."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.local_cluster import LocalCluster
from lakelog.verification.bench.data import DataSet
from lakelog.verification.bench.flame_graph import flame_graph
from lakelog.verification.bench.folder import bench_folder
from lakelog.verification.bench.send_path import MicroBatch, Trace, batch_parts, parts_of
from lakelog.verification.bench.spans import COMMIT, Tracer
from lakelog.verification.bench.stack_sampler import StackSampler
from lakelog.verification.bench.thread_cpu import cpu_now, cpu_since

SEND = "send"
_TOPIC = "bench"
_TIMEOUT_MS = 120_000

Reports: TypeAlias = dict[tuple[str, int], MicroBatch]  # by query and number


@dataclass(frozen=True)
class ProfilePlan:
    """The sends that warm up, those that are measured, and the seconds in which nothing is sent."""

    warm_up: int = 20
    sends: int = 60
    idle_seconds: float = 5.0


# Checks that the benchmark works. Its figures mean nothing.
QUICK_PROFILE = ProfilePlan(2, 2, 1.0)


@dataclass
class SendProfile:
    """The measured sends of one kind.

    `seconds`: the time of each. `parts`: the seconds of each part, for each send whose way is known. `batches`: the
    same for each micro-batch. `pauses`: how often the client waited between two looks. `commits`: the seconds of each
    commit by table and cause. `cpu_seconds` of all sends together, by group of threads; `idle_cores` without sends.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    batches: list[dict[str, float]] = field(default_factory=list)
    pauses: int = 0
    commits: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    idle_cores: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Profile:
    """The sends of each kind."""

    sends: list[SendProfile] = field(default_factory=list)

    @property
    def is_explained(self) -> bool:
        """Whether the parts of a send of each kind are known. Most sends begin no micro-batch."""
        return all(send.parts for send in self.sends)


@dataclass(frozen=True)
class _Kind:
    """A send of one record to each partition; `assignment` has the replicas of each."""

    name: str
    brokers: int
    assignment: Mapping[int, tuple[int, ...]]


# The second has one follower query, so one micro-batch.
_KINDS = (
    _Kind("12 partitions, 3 brokers", 3, {n: tuple((n + i) % 3 + 1 for i in range(3)) for n in range(12)}),
    _Kind("1 partition, 2 brokers", 2, {0: (1, 2)}),
)


def measure_profile(spark: SparkSession, plan: ProfilePlan, flame: Path | None = None) -> Profile:
    """Runs the plan in temporary folders, with a progress bar on stderr. Writes a flame graph of further sends of the
    first kind to the file `flame`."""
    found = Profile()
    with counting_bar() as progress:
        total = (1 + plan.warm_up + plan.sends) * len(_KINDS) + (plan.sends if flame else 0)
        task = progress.add_task("sending", total=total)
        for kind in _KINDS:
            with bench_folder() as folder, LocalCluster(spark, str(folder), kind.brokers) as cluster:
                run = _Run(cluster, kind, lambda: progress.advance(task))
                found.sends.append(run.measure(plan))
                if flame and len(found.sends) == 1:
                    _draw(StackSampler(spark), run, plan.sends, flame)
    return found


def _draw(sampler: StackSampler, run: _Run, sends: int, flame: Path) -> None:
    run.send(sends, sampler.sampling())
    flame.write_text(flame_graph(sampler.stacks(), f"{sends} sends of {run.name}: core ms of one", 1000 / sends))


class _Run:
    """Sends of one kind, one after the other, each a record to each partition of a topic of its own."""

    def __init__(self, cluster: LocalCluster, kind: _Kind, on_send: Callable[[], None]) -> None:
        self.name, self._cluster, self._on_send = kind.name, cluster, on_send
        self._fetchers = len(
            {(broker, replicas[0]) for replicas in kind.assignment.values() for broker in replicas[1:]}
        )
        description = cluster.admin().create_topic(_TOPIC, assignment=kind.assignment)
        self._leader_of = {r.topic_id_partition: r.leader for r in description.partitions}
        self._producer, self._made = Producer(cluster.cluster_uri, acks="all"), 0

    def measure(self, plan: ProfilePlan) -> SendProfile:
        """Warms up, then measures the sends, and after them the same cluster while nothing is sent."""
        self.send(1, nullcontext())
        wait_until(self._queries_have_begun, "all followers' queries have begun", 120)
        self.send(plan.warm_up, nullcontext())
        threading.Event().wait(plan.idle_seconds)
        tracer, before = Tracer(), cpu_now()
        batches = self.send(plan.sends, tracer.tracing(), tracer)
        sent, before = cpu_since(before), cpu_now()
        threading.Event().wait(plan.idle_seconds)
        idle = {name: used / plan.idle_seconds for name, used in cpu_since(before).items()}
        batches.update(self._reports())
        found = self._profile(Trace(tracer.spans, batches.values(), self._leader_of))
        found.cpu_seconds, found.idle_cores = sent, idle
        return found

    def _queries_have_begun(self) -> bool:
        """Until then a follower fetches without its query."""
        reports = [query.lastProgress for query in self._cluster.queries()]
        return len(reports) == self._fetchers and all(report is not None for report in reports)

    def send(
        self, count: int, context: AbstractContextManager[object], tracer: Tracer | None = None
    ) -> Reports:  # fmt: skip
        """Sends `count` times. Returns the micro-batches of the meantime, if a tracer notes the sends. Spark keeps the
        reports of the last ones only, so they are read after each send."""
        found: Reports = {}
        tables = [self._table() for _ in range(count)]
        with context:
            for table in tables:
                with tracer.span(SEND) if tracer else nullcontext():
                    raise_first_error(self._producer.send(_TOPIC, table, timeout_ms=_TIMEOUT_MS))
                self._on_send()
                if tracer:
                    found.update(self._reports())
        return found

    def _reports(self) -> Reports:
        return {(batch.query, batch.batch): batch for batch in micro_batches(self._cluster)}

    def _table(self) -> pa.Table:
        self._made += 1
        numbers = [partition.partition for partition in self._leader_of]
        return DataSet(len(numbers), 100).table(self._made).append_column("partition", pa.array(numbers, pa.int32()))

    def _profile(self, trace: Trace) -> SendProfile:
        sends = [span for span in trace.spans if span.name == SEND]
        found = SendProfile(self.name, [send.seconds for send in sends])
        found.parts = [parts for send in sends if (parts := parts_of(trace, send)) is not None]
        found.batches = [parts for send in sends for parts in batch_parts(trace, send)]
        found.pauses = sum(len(trace.named("Pause", send.start, send.end)) for send in sends)
        for commit in trace.named(COMMIT, sends[0].start, sends[-1].end):
            kind = table_of(commit.table), commit.why
            found.commits.setdefault(kind, []).append(commit.seconds)
        return found


def micro_batches(cluster: LocalCluster) -> Iterator[MicroBatch]:
    """The last micro-batches of each query, as Spark reports them."""
    for query in cluster.queries():
        for report in query.recentProgress:
            start = datetime.fromisoformat(report["timestamp"]).timestamp()
            yield MicroBatch(report["name"], report["batchId"], start, dict(report["durationMs"]))


def table_of(uri: str) -> str:
    """The name of a state table or of the log: `brokers` of `…/cluster/brokers/2`."""
    return next(name for name in reversed(uri.split("/")) if not name.isdigit())
