"""`bench controller`: runs the controller alone on the tables of a large cluster, whose brokers are only rows. No
Spark."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from lakelog.jobs.cli.console import Row
from lakelog.replication.config import Config
from lakelog.replication.controller.active_controller import ActiveController
from lakelog.replication.errors import ControllerMovedException
from lakelog.replication.protocol.assignment import assign_replicas
from lakelog.replication.protocol.broker_registration import BrokerRegistration, Liveness
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_cluster, storage_root
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.verification.bench.measuring import bench_folder
from lakelog.verification.bench.replication import circumstances

TOPIC = "bench"
REPLICAS = 3
LOST, LEAVING = 1, 2
_EPOCH = 1  # of every broker
_CAUSE = {"who": "bench", "why": "set up"}

Partitions = Mapping[TopicIdPartition, PartitionRegistration]


@dataclass(frozen=True)
class TimedStep:
    """The duration of a step in seconds, and its result in the tables; `wrong` is empty if the result is right.

    `cpu_seconds` is the CPU time of this process. The rest of `seconds` is waiting for others.
    """

    name: str
    seconds: float
    cpu_seconds: float
    commits: int
    changed: int
    leaders: Mapping[int, int]
    wrong: str
    cluster_roots: int


class SteppedClock:
    """A clock in seconds that the benchmark advances, so nothing waits for a session time-out."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class ControllerBench:
    """A cluster of rows: one topic, full ISRs, and brokers whose heartbeats the benchmark writes."""

    def __init__(self, folder: str, partitions: int, brokers: int, cluster_roots: int = 1) -> None:
        self._cluster_roots = cluster_roots
        uri = ",".join(f"{folder}/cluster-{number}" for number in range(cluster_roots))
        self._root = storage_root(uri, "cluster", Config())
        format_cluster(self._root, Config())
        self._brokers = {broker: BrokerTable.open_or_create(self._root, broker) for broker in range(1, brokers + 1)}
        for broker, table in self._brokers.items():
            row = BrokerRegistration(broker, f"{folder}/{broker}", None, _EPOCH, -1, False, None, "none", 0)
            table.register(lambda _, row=row: row)  # type: ignore[misc]
        self._write_topic(partitions)
        self._clock, self._cluster = SteppedClock(), Cluster.open(self._root.uri)
        self._config = self._cluster.config
        self._controller = self._elected()

    def _write_topic(self, partitions: int) -> None:
        cluster = Cluster.open(self._root.uri)
        assignment = assign_replicas(dict.fromkeys(self._brokers), partitions, REPLICAS, 0, 0)
        cluster.topics.change([Topic(TOPIC, f"{TOPIC}-id", partitions)], (), _CAUSE)
        new = (new_partition(TOPIC, f"{TOPIC}-id", n, replicas, self._brokers) for n, replicas in assignment.items())
        cluster.metadata.put((replace(r, isr_epochs=dict.fromkeys(r.isr, _EPOCH)) for r in new), _CAUSE)

    def _elected(self) -> ActiveController:
        held = self._cluster.lease.elect("bench", None)
        if held is None:
            raise ControllerMovedException(f"{self._root.uri}: another controller was elected")
        liveness = Liveness(self._config.broker_session_timeout_ms, self._clock)
        return ActiveController(self._cluster, liveness, held, self._clock)

    def run(self) -> list[TimedStep]:
        """Runs all steps: start-up, the loss of a broker, the controlled shutdown of another."""
        everybody = set(self._brokers)
        steps = [self._measure("start-up", lambda: self._controller.fail_over({}), everybody)]
        self._fall_silent(LOST)
        steps.append(self._measure("loss of a broker", self._controller.poll, everybody - {LOST}))
        self._brokers[LEAVING].heartbeat(_EPOCH, "shutdown", shutting_down=True)
        steps.append(self._measure("controlled shutdown", self._controller.poll, everybody - {LOST, LEAVING}))
        return steps

    def _fall_silent(self, broker: int) -> None:
        """Lets the session of one broker expire at the next poll. The others send heartbeats all the time."""
        beat = self._config.broker_heartbeat_interval_ms / 1000
        while self._clock.now <= self._config.broker_session_timeout_ms / 1000:
            self._controller.poll()
            self._clock.now += beat
            for table in (table for other, table in self._brokers.items() if other != broker):
                table.heartbeat(_EPOCH, "heartbeat")

    def _measure(self, name: str, act: Callable[[], None], able: Collection[int]) -> TimedStep:
        before = MetadataTable.open(self._root)
        started, cpu_started = time.perf_counter(), time.process_time()
        act()
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        after = MetadataTable.open(self._root)
        changed = sum(row != before.partitions[key] for key, row in after.partitions.items())
        leaders = dict(sorted(Counter(row.leader for row in after.partitions.values()).items()))
        wrong = first_wrong(before.partitions, after.partitions, able)
        commits = after.version - before.version
        return TimedStep(name, seconds, cpu_seconds, commits, changed, leaders, wrong, self._cluster_roots)


def first_wrong(before: Partitions, after: Partitions, able: Collection[int]) -> str:
    """The first wrong partition as text, empty if there is none. A partition is right if its first live replica leads,
    its live replicas form the ISR, and its leader epoch has gone up by one if it changed."""
    for key in sorted(before.keys() | after.keys()):
        was, row = before.get(key), after.get(key)
        if was is None or row is None:
            return f"partition {key.partition}: {was} became {row}"
        isr = tuple(broker for broker in row.replicas if broker in able)
        is_new = (was.leader, was.isr) != (row.leader, row.isr)
        if (row.leader, row.isr) != (isr[0], isr) or row.leader_epoch != was.leader_epoch + is_new:
            return f"partition {key.partition}: {was} became {row}, with brokers {sorted(able)}"
    return ""


def measure_controller(partitions: int, brokers: int, cluster_roots: Sequence[int] = (1,)) -> list[TimedStep]:
    """Measures all steps for each number of cluster roots, on tables in folders that are deleted afterwards."""
    steps = list[TimedStep]()
    for count in cluster_roots:
        with bench_folder() as folder:
            steps += ControllerBench(str(folder), partitions, brokers, count).run()
    return steps


def controller_figures(steps: Sequence[TimedStep], partitions: int, brokers: int) -> dict[str, object]:
    """All figures. If a result is wrong, the times mean nothing and are left out."""
    about = {"partitions": partitions, "brokers": brokers, **circumstances()}
    wrong = {step.name: step.wrong for step in steps if step.wrong}
    if wrong:
        return {"outcome_is_right": False, "wrong": wrong, **about}
    return {
        "outcome_is_right": True,
        "longest_seconds": round(max(step.seconds for step in steps), 3),
        "commits": sum(step.commits for step in steps),
        "steps": [
            {
                "step": step.name,
                "cluster_roots": step.cluster_roots,
                "seconds": round(step.seconds, 3),
                "cpu_seconds": round(step.cpu_seconds, 3),
                "commits": step.commits,
                "changed": step.changed,
                "leaders": {str(broker): count for broker, count in step.leaders.items()},
            }
            for step in steps
        ],
        **about,
    }


def controller_rows(steps: Sequence[TimedStep]) -> list[Row]:
    """One row a step."""
    return [
        {
            "step": step.name,
            "cluster_roots": step.cluster_roots,
            "partitions_changed": step.changed,
            "leaders": ", ".join(f"broker {broker}: {count:,}" for broker, count in step.leaders.items()),
            "commits": step.commits,
            "seconds": round(step.seconds, 2),
            "cpu_seconds": round(step.cpu_seconds, 2),
        }
        for step in steps
    ]
