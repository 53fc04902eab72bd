"""The world of one history: its tables, its actors, its clock, and the checker that looks at every commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from lakelog.replication.errors import StaleBrokerEpochException
from lakelog.replication.protocol.high_watermark import effective_min_isr
from lakelog.replication.protocol.leader_election import new_partition
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.simulation.actor import OVERTAKEN, UNKNOWN, WON, Actor
from lakelog.replication.simulation.admin_client import UNCLEAN_KEY, SimulatedAdminClient
from lakelog.replication.simulation.broker_process import SimulatedBrokerProcess
from lakelog.replication.simulation.controller import SimulatedController
from lakelog.replication.simulation.events import CRASH, DROPPED, LANDED, PAUSE, RESUME, SHUTDOWN, START, STEP, Event
from lakelog.replication.simulation.history_checker import HistoryChecker
from lakelog.replication.simulation.producer import SimulatedProducer
from lakelog.replication.simulation.reader import SimulatedReader
from lakelog.replication.simulation.record_deleter import RecordDeleter
from lakelog.replication.simulation.rules import Rules
from lakelog.replication.simulation.tables import (
    Admin,
    BrokerRow,
    Metadata,
    Rows,
    SimulatedLogChange,
    SimulatedLogState,
    Topics,
    Values,
    VersionedTable,
    name_of,
    replay,
)

CONTROLLERS = 3


class WorldSettings(NamedTuple):
    """What a history is about: how many of everything, and what is allowed in it."""

    brokers: int = 3
    partitions: int = 1
    min_insync_replicas: int = 1
    unclean_allowed: bool = False
    replica_lag_time_max: float = 3.0
    reassigns: bool = True
    deletes: bool = True
    producers: int = 3
    deletes_records: bool = False


class World:
    """Everything there is. It changes by `apply` alone, one event after the other."""

    def __init__(self, setting: WorldSettings, rules: Rules) -> None:
        self.setting = setting
        self.rules = rules
        self.step = 0
        self.now = 0.0
        self.trace: list[str] | None = None
        self.checker = HistoryChecker(self)
        self.topic = "numbers"
        self.is_calm = False
        self._topic_ids = 1
        self.broker_ids = tuple(range(1, setting.brokers + 1))
        self.metadata = VersionedTable("metadata", Metadata(self._first_partitions()))
        self.topics = VersionedTable("topics", Topics({self.topic: self._first_topic()}))
        self.admin = VersionedTable("admin", Admin())
        self.lease = VersionedTable("controller", 0)
        self.registry: VersionedTable[Mapping[int, BrokerRow]] = VersionedTable(
            "brokers", {b: BrokerRow(0) for b in self.broker_ids}
        )
        self.logs = {b: VersionedTable(f"log of broker {b}", SimulatedLogState(-1, {}), b) for b in self.broker_ids}
        self.replicas = {b: VersionedTable(f"replicas of broker {b}", Rows(-1, {}), b) for b in self.broker_ids}
        self.records: dict[str, Values] = {}
        self.processes: dict[str, SimulatedBrokerProcess] = {}
        self.others: dict[str, Actor] = {}
        self._started = dict.fromkeys(self.broker_ids, 0)
        self._numbers = 0
        self._people()

    def _first_topic(self) -> Topic:
        configs = {UNCLEAN_KEY: str(self.setting.unclean_allowed).lower()}
        return Topic(self.topic, "t1", self.setting.partitions, configs)

    def _first_partitions(self) -> dict[TopicIdPartition, PartitionRegistration]:
        spread = [self.broker_ids[n % len(self.broker_ids) :] + self.broker_ids[: n % len(self.broker_ids)]
                  for n in range(self.setting.partitions)]  # fmt: skip
        made = [
            new_partition(self.topic, "t1", n, b[: max(2, len(b) - 1) if n else 3], b) for n, b in enumerate(spread)
        ]
        epochs = dict.fromkeys(self.broker_ids, 1)  # of the first process of each
        return {r.topic_id_partition: replace(r, isr_epochs={b: epochs[b] for b in r.isr}) for r in made}

    def _people(self) -> None:
        for broker in self.broker_ids:
            self.apply(Event(f"broker-{broker}", START))
        clients = [SimulatedProducer(self, f"producer-{n}") for n in range(1, self.setting.producers + 1)]
        actors = [
            *clients,
            SimulatedReader(self, "reader-1"),
            SimulatedAdminClient(self, "admin-1"),
            *(SimulatedController(self, f"controller-{n}") for n in range(1, CONTROLLERS + 1)),
            *([RecordDeleter(self, "deleter-1")] if self.setting.deletes_records else []),
        ]
        self.others = {actor.name: actor for actor in actors}

    def say(self, who: str, words: str, *facts: object) -> None:
        """A line of the history, if anybody wants to read it."""
        if self.trace is not None:
            self.trace.append(f"{self.step:>5}  {who:<22}  {words % facts}")

    def number(self) -> int:
        """A number that nobody has had before: the value of a record, the id of a producer, the name of a segment."""
        self._numbers += 1
        return self._numbers

    def topic_id(self) -> int:
        """A number that no topic or request has had before."""
        self._topic_ids += 1
        return self._topic_ids

    def min_isr(self, registration: PartitionRegistration) -> int:
        """Members that the ISR of a partition needs."""
        return effective_min_isr(self.setting.min_insync_replicas, len(registration.replicas))

    def live(self) -> set[int]:
        """The brokers that are at work."""
        return {process.broker_id for process in self.processes.values() if not process.is_paused}

    def runnable(self) -> list[str]:
        """Who may take the next step."""
        threads = [t for p in self.processes.values() if not p.is_paused for t in p.threads()]
        return [*threads, *(name for name, actor in self.others.items() if not actor.is_paused)]

    def is_controlled(self) -> bool:
        """Whether a controller is at work."""
        return any(isinstance(actor, SimulatedController) and actor.is_at_work for actor in self.others.values())

    def apply(self, event: Event) -> None:
        """One event. One that makes no sense now, as its actor is gone or asleep, does nothing."""
        self.now += 0.01 + (event.salt & 63) / 800
        if event.act == STEP:
            self._take(event)
        elif event.act == START:
            self._start(int(event.actor.removeprefix("broker-")))
        elif event.actor in self.processes:
            self._happen(self.processes[event.actor], event.act)
        elif isinstance(self.others.get(event.actor), SimulatedController):
            self._happen_to_controller(event.actor, event.act)

    def _take(self, event: Event) -> None:
        owner, _, thread = event.actor.partition("/")
        process = self.processes.get(owner)
        actor = process.thread(thread) if process else self.others.get(owner)
        if actor is None or actor.is_paused or (process is not None and process.is_paused):
            return
        self.step += 1
        try:
            actor.take(event)
        except StaleBrokerEpochException as error:
            self.say(event.actor, "stops: %s", error)
            self._end(owner)

    def _start(self, broker: int) -> None:
        self.step += 1
        self._started[broker] += 1
        name = f"broker-{broker}.{self._started[broker]}"
        self.processes[name] = SimulatedBrokerProcess(self, name, broker)
        self.say(f"broker-{broker}", "process %s starts", name)

    def _happen(self, process: SimulatedBrokerProcess, act: str) -> None:
        self.step += 1
        self.say(process.name, "%s", act)
        if act == CRASH:
            self._end(process.name)
        elif act in (PAUSE, RESUME):
            process.is_paused = act == PAUSE
        elif act == SHUTDOWN:
            process.is_shutting_down = True

    def _happen_to_controller(self, name: str, act: str) -> None:
        """One that crashes is started again, and stands by."""
        self.step += 1
        self.say(name, "%s", act)
        if act == CRASH:
            self.others[name].stop()
            self.others[name] = SimulatedController(self, name)
        elif act in (PAUSE, RESUME):
            self.others[name].is_paused = act == PAUSE

    def _end(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is not None:
            process.stop()

    def commit(self, actor: Actor, table: VersionedTable[Any], expected: int, change: Any, why: str) -> str:
        """Compare-and-set. What has landed is shown to the checker, whatever the actor is told."""
        if actor.turn.fault == DROPPED:
            actor.say("commits to %s (%s): never arrives, and is told nothing", table.name, why)
            return UNKNOWN
        before = table.at(table.newest)
        is_log = isinstance(change, SimulatedLogChange)
        if expected != table.newest:
            actor.say("commits to %s (%s): overtaken, the newest version is %d", table.name, why, table.newest)
            return OVERTAKEN
        if is_log:
            self.records.update({batch.segment: batch.values for batch in change.adds})
        after = replay(before, change) if is_log else change
        table.commit(expected, after, self.step, change if is_log else None)
        lost = actor.turn.fault == LANDED
        told = ", and is told nothing" if lost else ""
        actor.say("commits version %d of %s (%s)%s", table.newest, table.name, _words(before, after, why), told)
        self.checker.look(table, before, after, change)
        return UNKNOWN if lost else WON


def _words(before: Any, after: Any, why: str) -> str:
    """What a commit is for; of the metadata, what it makes of each partition."""
    if not isinstance(after, Metadata) or after.partitions == before.partitions:
        return why
    changed = [r for p, r in after.partitions.items() if before.partitions.get(p) != r]
    words = [
        f"{name_of(r.topic_id_partition)} leader {r.leader}@{r.leader_epoch} ISR {r.isr} of {r.replicas}"
        for r in changed
    ]
    gone = [f"{name_of(p)} gone" for p in before.partitions if p not in after.partitions]
    return "; ".join([*words, *gone])
