"""Three brokers in processes of their own, one of which is killed now and then while records are produced."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from jobs.broker_process import BrokerProcess
from jobs.log_check import check_logs
from jobs.number_producer import Acknowledged, NumberProducer
from jobs.waiting import wait_until
from replication.clients.admin import AdminClient
from replication.clients.topic_view import TopicView
from replication.config import Config
from replication.protocol.fetch_state import ReplicaState
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.storage.cluster import Cluster, format_cluster
from replication.storage.filesystem import StorageRoot

BROKERS = (1, 2, 3)
TOPIC = "numbers"
# Each broker leads two partitions and follows four.
ASSIGNMENT = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2), 3: (1, 3, 2), 4: (2, 1, 3), 5: (3, 2, 1)}
# First number, batch and timeout: a patient one, and one that goes on to append while a broker is away.
PRODUCERS = ((0, 6_000, 60_000), (10**9, 60, 500))
DEADLINE = 300.0

Offsets = Mapping[TopicIdPartition, int]


class Report(Protocol):
    """Is told how far the test has come."""

    def __call__(self, *, description: str, completed: int, acknowledged: int) -> None: ...


@dataclass(frozen=True)
class KillPlan:
    """How often, at which random moments, and whether the checkpoints of the dead go each time or every second time."""

    kills: int
    seed: int
    delete_checkpoints: bool


def run_kill_test(folder: Path, plan: KillPlan, report: Report) -> dict[str, object]:
    """Runs it all in an empty folder and answers what was found. `report` is told how far it has come."""
    started = time.monotonic()
    cluster_uri = str(folder / "cluster")
    format_cluster(StorageRoot.of(cluster_uri), Config())
    with _brokers(folder, cluster_uri) as brokers:
        harness = KillHarness(cluster_uri, brokers, plan, report)
        harness.run()
    findings = check_logs(harness.view, TOPIC, harness.acknowledged)
    return {
        "kills": plan.kills,
        "checkpoints_deleted": harness.checkpoints_deleted,
        "sent": sum(producer.sent for producer in harness.producers),
        "acknowledged": len(harness.acknowledged),
        **findings._asdict(),
        "stopped_in_order": harness.stopped_in_order,
        "not_acknowledged": dict(sum((producer.errors for producer in harness.producers), Counter())),
        "elapsed_s": round(time.monotonic() - started, 1),
        "seed": plan.seed,
        "ok": findings.is_good and harness.stopped_in_order and bool(harness.acknowledged),
    }


@contextmanager
def _brokers(folder: Path, cluster_uri: str) -> Iterator[dict[int, BrokerProcess]]:
    brokers = {
        i: BrokerProcess(cluster_uri, i, str(folder / f"broker-{i}"), folder / f"broker-{i}.log") for i in BROKERS
    }
    try:
        yield brokers
    finally:
        for broker in brokers.values():
            broker.kill()


class KillHarness:
    """The course of a test. One broker at a time is killed; a killed one may still be starting when the next one is."""

    def __init__(self, cluster_uri: str, brokers: dict[int, BrokerProcess], plan: KillPlan, report: Report) -> None:
        self._cluster_uri = cluster_uri
        self._brokers = brokers
        self._plan = plan
        self._report = report
        self._random = random.Random(plan.seed)
        self._kills = 0
        self.checkpoints_deleted = 0
        self.stopped_in_order = False
        self.view = TopicView(Cluster.open(cluster_uri))
        self.producers = [
            NumberProducer(cluster_uri, TOPIC, len(ASSIGNMENT), first, batch, timeout_ms)
            for first, batch, timeout_ms in PRODUCERS
        ]

    @property
    def acknowledged(self) -> list[Acknowledged]:
        """All that the producers were told is safe."""
        return [record for producer in self.producers for record in producer.acknowledged]

    def run(self) -> None:
        """From the start of the brokers to their end."""
        self._tell("starting")
        for broker in self._brokers.values():
            broker.start()
        self._wait(lambda: set(self.view.cluster.refresh_brokers()) == set(BROKERS), "brokers register")
        admin = AdminClient(self._cluster_uri)
        admin.create_topic(TOPIC, assignment=ASSIGNMENT, configs={"min.insync.replicas": 2})
        for producer in self.producers:
            producer.start()
        for number in range(self._plan.kills):
            self._until_a_random_moment(number)
            self._kill(self._random.choice(BROKERS), number)
        for producer in self.producers:
            producer.stop()
        self._wait_for_replicas()
        self._tell("stopping")
        self.stopped_in_order = [broker.stop() for broker in self._brokers.values()] == [0] * len(self._brokers)

    def _until_a_random_moment(self, number: int) -> None:
        """Once all is well again, and every other time already while the last victim starts and catches up."""
        if number % 2 == 0:
            self._wait_for_replicas()
            self._pass(self._random.uniform(0, 2))
        else:
            self._pass(self._random.uniform(0, 15))

    def _kill(self, victim: int, number: int) -> None:
        self._brokers[victim].kill()
        self._kills += 1
        self._tell(f"broker {victim} was killed")
        self._pass(self._random.uniform(0, 4))
        checkpoints = Path(self._brokers[victim].root, "checkpoints")
        if self._plan.delete_checkpoints or number % 4 in (0, 3):  # half of the kills of either kind of moment
            shutil.rmtree(checkpoints, ignore_errors=True)
            self.checkpoints_deleted += 1
        self._brokers[victim].start()

    def _wait_for_replicas(self) -> None:
        """Until every replica has, and every leader has committed, what the leaders' logs now hold."""
        partitions = self.view.partitions(TOPIC).values()
        ends = {r.topic_id_partition: self._log_end_offset(r) for r in partitions}
        leaders = {r.topic_id_partition: r.leader for r in partitions}
        self._wait(lambda: all(self._has(broker, ends, leaders) for broker in BROKERS), "replicas catch up")

    def _log_end_offset(self, registration: PartitionRegistration) -> int:
        return self.view.log(registration.leader).refresh().partition(registration.topic_id_partition).log_end_offset

    def _has(self, broker: int, ends: Offsets, leaders: Mapping[TopicIdPartition, int]) -> bool:
        rows, registered = self.view.replicas(broker), self.view.cluster.refresh_brokers()[broker]
        return rows.keys() == ends.keys() and all(
            row.broker_epoch == registered.broker_epoch
            and row.state == ReplicaState.FETCHING
            and row.log_end_offset >= ends[partition]
            and (row.high_watermark >= ends[partition] or leaders[partition] != broker)
            for partition, row in rows.items()
        )

    def _pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() >= end, "time passes")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def is_over() -> bool:
            self._check()
            self._tell(what)
            return condition()

        wait_until(is_over, what, DEADLINE)

    def _check(self) -> None:
        for broker in self._brokers.values():
            broker.check()
        for producer in self.producers:
            producer.check()

    def _tell(self, what: str) -> None:
        self._report(description=what, completed=self._kills, acknowledged=len(self.acknowledged))
