"""Runs three brokers and two controllers as processes and kills some of them while it produces records."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lakelog.jobs.cli.progress import ProgressReport
from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.faults.cluster_health import ClusterHealth
from lakelog.verification.faults.cluster_processes import BrokerProcess, ClusterProcesses, ControllerProcess
from lakelog.verification.faults.log_check import check_logs
from lakelog.verification.faults.number_producer import AcknowledgedRecord, NumberProducer, NumberSender
from lakelog.verification.faults.outages import BOTH, CONTROLLER, Outage, are_short, distribution

BROKERS = (1, 2, 3)
TOPIC = "numbers"
# Initially each broker leads two partitions and follows four.
ASSIGNMENT = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2), 3: (1, 3, 2), 4: (2, 1, 3), 5: (3, 2, 1)}
# First number, batch size and timeout (ms): one waits for brokers, the other one keeps appending while a broker is
# away.
PRODUCERS = ((0, 6_000, 60_000), (10**9, 60, 1_500))
# The probes measure outages, one for each partition. Each starts at a number that belongs to its partition.
PROBE, SPAN, PROBE_TIMEOUT = 500_000_000 * len(ASSIGNMENT), 10**6 * len(ASSIGNMENT) + 1, 60_000
DEADLINE = 300.0


@dataclass(frozen=True)
class KillPlan:
    """The victims of each round, the number of rounds, the seed, and whether the checkpoints of a dead broker are
    deleted each time or every second time."""

    victims: tuple[str, ...]
    kills: int
    seed: int
    delete_checkpoints: bool

    @property
    def total(self) -> int:
        """The number of kills."""
        return self.kills * len(self.victims)


def run_kill_test(folder: Path, plan: KillPlan, report: ProgressReport) -> dict[str, object]:
    """Runs the test in an empty folder and returns its figures. It calls `report` with its progress."""
    started = time.monotonic()
    cluster_uri = str(folder / "cluster")
    format_cluster(StorageRoot.of(cluster_uri), Config())
    with ClusterProcesses(folder, cluster_uri, BROKERS).ended() as processes:
        harness = KillHarness(cluster_uri, processes, plan, report)
        harness.run()
    findings = check_logs(harness.view, TOPIC, harness.acknowledged)
    is_short = are_short(harness.outages, harness.view.cluster.config)
    return {
        "kills": plan.total,
        "checkpoints_deleted": harness.checkpoints_deleted,
        "sent": sum(sender.sent for sender in harness.senders),
        "acknowledged": len(harness.acknowledged),
        **findings._asdict(),
        "stopped_in_order": harness.stopped_in_order,
        "not_acknowledged": dict(sum((sender.errors for sender in harness.senders), Counter())),
        "within_session_timeout_plus_2_s": is_short,
        "time_to_first_acknowledged": distribution(harness.outages),
        "outages": [outage._asdict() for outage in harness.outages],
        "elapsed_s": round(time.monotonic() - started, 1),
        "seed": plan.seed,
        "ok": findings.is_good and harness.stopped_in_order and is_short and bool(harness.acknowledged),
    }


class KillHarness:
    """Runs the test: kills, measures the outage, restarts, and waits until every replica is in sync."""

    def __init__(self, cluster_uri: str, processes: ClusterProcesses, plan: KillPlan, report: ProgressReport) -> None:
        self._cluster_uri = cluster_uri
        self._processes = processes
        self._plan = plan
        self._report = report
        self._random = random.Random(plan.seed)
        self.checkpoints_deleted = 0
        self.stopped_in_order = False
        self.outages: list[Outage] = []
        self.view = TopicView(Cluster.open(cluster_uri))
        self._health = ClusterHealth(self.view, processes, [TOPIC])
        self._producers = [
            NumberProducer(cluster_uri, TOPIC, len(ASSIGNMENT), first, batch, timeout_ms)
            for first, batch, timeout_ms in PRODUCERS
        ]
        self._probes = {
            partition: NumberSender(cluster_uri, TOPIC, len(ASSIGNMENT), PROBE + partition * SPAN, PROBE_TIMEOUT)
            for partition in ASSIGNMENT
        }
        self.senders: list[NumberSender] = [*self._producers, *self._probes.values()]

    @property
    def acknowledged(self) -> list[AcknowledgedRecord]:
        """All records that the producers got acknowledgements for."""
        return [record for sender in self.senders for record in sender.acknowledged]

    def run(self) -> None:
        """Runs the test, from the start of the processes to their end."""
        self._tell("starting")
        for process in self._processes.all():
            process.start()
        self._wait(lambda: set(self.view.cluster.refresh_brokers()) == set(BROKERS), "brokers register")
        admin = AdminClient(self._cluster_uri)
        admin.create_topic(TOPIC, assignment=ASSIGNMENT, configs={"min.insync.replicas": 2})
        for producer in self._producers:
            producer.start()
        self._wait_for_records()
        for number in range(self._plan.kills):
            for victim in self._plan.victims:
                self._wait_for_replicas()
                self._pass(self._random.uniform(0, 2))
                self._kill(victim, number)
        for producer in self._producers:
            producer.stop()
        self._wait_for_replicas()
        self._tell("stopping")
        self.stopped_in_order = not any(self._processes.stop())

    def _wait_for_records(self) -> None:
        """Waits until a record is acknowledged. The first streams of new brokers take some seconds."""
        patient = self._producers[0]
        self._wait(lambda: bool(patient.acknowledged), "the first records are acknowledged")

    def _kill(self, victim: str, number: int) -> None:
        """Kills the victims, and starts them again only after it has measured the outage."""
        controller = self._health.active() if victim in (CONTROLLER, BOTH) else None
        broker = self._leader() if victim != CONTROLLER else None
        led = set(ASSIGNMENT) if broker is None else self._led_by(broker)
        killed = [process for process in (controller, broker) if process is not None]
        self.outages.append(self._measure(victim, killed, led))
        if broker is not None:
            self._delete_checkpoints(broker, number)
        for process in killed:
            process.start()

    def _measure(self, victim: str, killed: list[BrokerProcess | ControllerProcess], led: set[int]) -> Outage:
        """Sends a record to each partition right after the kill, and waits for the acknowledgements."""
        with ThreadPoolExecutor(len(led)) as pool:
            started = time.monotonic()
            for process in killed:
                process.kill()
            answers = [pool.submit(self._until_acknowledged, partition, started) for partition in sorted(led)]
            self._wait(lambda: self._health.active() is not None, f"after the {victim} was killed", pause=0.05)
            taken_over = time.monotonic() - started
            self._wait(lambda: all(answer.done() for answer in answers), "records are acknowledged")
        is_deposed = any(isinstance(process, ControllerProcess) for process in killed)
        names, times = [process.name for process in killed], [answer.result() for answer in answers]
        return Outage(victim, names, sorted(led), times, taken_over if is_deposed else None)

    def _until_acknowledged(self, partition: int, started: float) -> float | None:
        return time.monotonic() - started if self._probes[partition].probe() else None

    def _delete_checkpoints(self, broker: BrokerProcess, number: int) -> None:
        if self._plan.delete_checkpoints or number % 2 == 0:
            shutil.rmtree(Path(broker.root, "checkpoints"), ignore_errors=True)
            self.checkpoints_deleted += 1

    def _leader(self) -> BrokerProcess:
        """A random broker that leads now."""
        leaders = {registration.leader for registration in self.view.partitions(TOPIC).values()}
        return self._processes.brokers[self._random.choice(sorted(leaders))]

    def _led_by(self, broker: BrokerProcess) -> set[int]:
        return {p for p, r in self.view.partitions(TOPIC).items() if r.leader == broker.broker_id}

    def _wait_for_replicas(self) -> None:
        """Waits until all ISRs are full, every replica has its leader's records, and a controller stands by."""
        self._wait(lambda: not self._health.lacks_members(), "the ISRs are whole")
        bounds = self._health.bounds()
        self._wait(lambda: not self._health.lacks_records(bounds), "replicas catch up")

    def _pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() >= end, "time passes")

    def _wait(self, condition: Callable[[], bool], what: str, pause: float = 0.2) -> None:
        def is_over() -> bool:
            self._processes.check()
            for producer in self._producers:
                producer.check()
            self._tell(what)
            return condition()

        wait_until(is_over, what, DEADLINE, pause)

    def _tell(self, what: str) -> None:
        acknowledged = sum(len(sender.acknowledged) for sender in self.senders)
        self._report(description=what, completed=len(self.outages), acknowledged=acknowledged)
