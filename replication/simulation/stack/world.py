"""A cluster of three brokers and two controllers without Spark and without threads, on real tables, over a store that
has faults. Which process takes its next step, what breaks and when, is told by one number, the seed.

While a process waits, or when another one is to get ahead of its commit, others go on in the middle of its step.

What may be lost is what Lakelog promises to stand: a power cut, or a root that is emptied, takes the log of one broker
at a time, or a part of it, while another member of the ISR has all that was acknowledged and lives until the controller
has seen it: so it neither ends meanwhile nor stands still for so long that it would be taken for dead. The root stays
within reach: producers append to a log that has lost its end and still says that it leads. Where a root cannot be read
afterwards, as a commit of it is torn, an operator empties it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from replication.config import Config
from replication.protocol.fetch_state import ReplicaState
from replication.protocol.leader_election import new_partition
from replication.protocol.partition_registration import PartitionRegistration
from replication.protocol.record_batch import TopicIdPartition
from replication.protocol.replica import Replica
from replication.protocol.topic import Topic
from replication.simulation.events import Violation
from replication.simulation.stack.faulty_store import FaultyStore, lose_end, tear_commit, tear_end
from replication.simulation.stack.one_thread import Changes, Clock, in_one_thread
from replication.simulation.stack.processes import (
    PARTITIONS,
    TOPIC,
    Interrupted,
    Process,
    StackBroker,
    StackController,
    StackProducer,
)
from replication.simulation.stack.rates import EMPTIED, KILLED, LOSES_END, STOPPED, TORN, Rates
from replication.storage.broker_table import BrokerTable
from replication.storage.cluster import Cluster, format_broker, format_cluster
from replication.storage.filesystem import StorageRoot
from replication.storage.memory.store import MemoryStore
from replication.storage.replica_log import ReplicaLog
from replication.storage.replica_table import ReplicaTable
from schemas import LOG, REPLICAS

BROKERS = (1, 2, 3)
TOPIC_ID = "flights-id"
DEPTH = 3  # so many steps may lie within one another
CALM_ROUNDS = 150
PATIENCE = 3.0  # seconds that a process waits for its turn at most, unless it is frozen
BROKER = {
    "replica.fetch.max.bytes": "1000",  # a record of a partition at a time: leaders are lost between two
    "log.cleaner.min.files": "8",
    "log.segment.bytes": "65536",
}


class StackWorld:
    """All processes and tables under one seed. `trace` has what has happened, to be read. Its processes live as long as
    the `changes` to what they run on."""

    def __init__(self, seed: int, changes: Changes, rates: Rates | None = None, **properties: str) -> None:
        self.seed, self.rng, self.clock, self.rates = seed, random.Random(seed), Clock(), rates or Rates()
        self.trace: list[str] = []
        self.steps = 0
        self._stack: list[Process | None] = []
        self.faults = FaultyStore(self.rng, self.rates, self._actor, self.let_others)
        in_one_thread(changes, self.clock, random.Random(seed))
        self.store = MemoryStore(f"world-{seed}", self.rng.random() < 0.5, self.clock.wall, self.faults)
        changes.enter_context(self.store.opened())
        changes.change(ReplicaTable, "publish", self._checked(ReplicaTable.publish))
        for place in ("sender", "delayed_operation"):
            changes.change(f"replication.clients.{place}", "pause", self._pause)
        self._format(properties)
        self.offices = [StackController(f"controller-{number}", self.cluster.root.uri) for number in (1, 2)]
        self.clients = [StackProducer(f"producer-{number}", self.cluster.root.uri) for number in (1, 2)]
        for client in self.clients:
            client.padding = b"." * self.rates.padding
        self.damaged: dict[int, int] = {}  # brokers that have lost records, and the last epoch with all of them

    def _actor(self) -> Process | None:
        return self._stack[-1] if self._stack else None

    def _format(self, properties: dict[str, str]) -> None:
        root = StorageRoot.of(f"{self.store.uri}/cluster")
        cluster_id = format_cluster(root, Config())
        self.cluster = Cluster.open(root.uri)
        self.nodes: dict[int, StackBroker] = {}
        for number in BROKERS:
            storage = StorageRoot.of(f"{self.store.uri}/broker-{number}")
            format_broker(storage, cluster_id, number)
            node = StackBroker(number, root.uri, storage, self.rates.maintains, **{**BROKER, **properties})
            node.may_die = self._may_end(node)
            self.nodes[number] = node
        for node in self.nodes.values():
            node.start()
        self.cluster.topics.change([Topic(TOPIC, TOPIC_ID, PARTITIONS)], (), {"who": "world"})
        replicas = [tuple(BROKERS[(p + n) % len(BROKERS)] for n in range(len(BROKERS))) for p in range(PARTITIONS)]
        made = (new_partition(TOPIC, TOPIC_ID, p, ar, BROKERS) for p, ar in enumerate(replicas))
        joined = (replace(r, isr_epochs=dict.fromkeys(r.isr, 1)) for r in made)
        self.cluster.metadata.put(joined, {"who": "world"})

    def _pause(self, milliseconds: int, deadline: float) -> None:
        self.clock.now += max(0.0, min(0.5, deadline - self.clock.now))
        if self.faults.has_faults and self.rng.random() < self.rates.interrupted:
            raise Interrupted
        self.interrupt()

    def _checked(self, publish: Callable[..., Any]) -> Callable[..., Any]:
        """A row never claims more than its log has when it is written."""

        def published(table: ReplicaTable, rows: Iterable[Replica], why: str) -> Any:
            actor, told = self._actor(), list(rows)
            session = actor.broker.session if isinstance(actor, StackBroker) and actor.broker is not None else None
            for row in told if actor and session else ():
                assert session is not None
                assert actor is not None
                log = session.replica_manager._log.current().known(row.topic_id_partition)
                has_chain = log.chain_at(row.log_end_offset) == row.chain
                is_claim = row.state not in (ReplicaState.TRUNCATING, ReplicaState.OFFLINE)
                if is_claim and (not has_chain or row.epochs != log.lineage):
                    raise Violation(
                        "rows_tell_what_the_log_has",
                        f"{actor.name} tells {row} of a log that ends at {log.log_end}, {log.lineage}",
                    )
            return publish(table, told, why)

        return published

    # Steps

    @contextmanager
    def acting(self, actor: Process | None) -> Iterator[None]:
        """Who uses the store meanwhile; None is the test, for which it has no faults."""
        self._stack.append(actor)
        try:
            yield
        finally:
            self._stack.pop()
            if actor is not None:
                actor.outage = None

    def run(self, actor: Process) -> None:
        """One step of one process, unless it is frozen."""
        if self.clock.now >= actor.frozen_until:
            self.trace.append(f"{self.clock.now:.1f} {'  ' * len(self._stack)}{actor.name}")
            self.steps, actor.looks = self.steps + 1, 0
            if isinstance(actor, StackBroker):
                actor.moved_at = self.clock.now
            with self.acting(actor):
                actor.step(self.rng)
            if isinstance(actor, StackBroker) and actor.number in self.damaged and actor.cannot_be_read:
                self._replace_root(actor)

    def let_others(self, seconds: float) -> None:
        """Others go on in the middle of a step, for so long that it may be found out."""
        until = self.clock.now + seconds
        self.interrupt()
        while self.clock.now < until and len(self._stack) <= DEPTH:
            self.clock.now += self.rng.uniform(0.1, 0.5)
            self.interrupt()

    def interrupt(self) -> None:
        """Another process goes on in the middle of a step."""
        is_sending = any(client in self._stack for client in self.clients)
        others = [a for a in self._all() if a not in self._stack and not (is_sending and a in self.clients)]
        if len(self._stack) <= DEPTH and others:
            self.happen(others)

    def happen(self, actors: Collection[Process]) -> None:
        """Something: mostly the step of a process, sometimes a fault."""
        self.clock.now += self.rng.uniform(0.05, 0.4)
        with self.acting(None):
            self.faults.is_careful = self._is_awaited()
        if self.faults.has_faults and self.rng.random() < self.rates.breaks:
            self._break()
        else:
            self.run(self._starving(actors) or self.rng.choice(list(actors)))

    def _starving(self, actors: Collection[Process]) -> StackBroker | None:
        """A broker that has waited for so long that it would soon be taken for dead."""
        nodes = [
            n
            for n in actors
            if isinstance(n, StackBroker) and self.clock.now >= max(n.frozen_until, n.moved_at + PATIENCE)
        ]
        return min(nodes, key=lambda node: node.moved_at, default=None)

    def _all(self) -> list[Process]:
        return [*self.nodes.values(), *self.offices, *self.clients]

    def storm(self, events: Iterable[int]) -> None:
        """Steps with faults. What an event does depends on its number and on how things are, not on the events before:
        some can be left out, and the others go on."""
        self.faults.has_faults = True
        for event in events:
            self.rng.seed(f"{self.seed}/{event}")
            self.happen(self._all())
        self.faults.has_faults = False

    # Faults of processes and roots

    def _break(self) -> None:
        faults: dict[str, Callable[[StackBroker], None]] = {
            KILLED: self.kill, STOPPED: self._freeze, LOSES_END: self.cut_power, TORN: self.tear,
            EMPTIED: self.empty_root,
        }  # fmt: skip
        (fault,) = self.rng.choices([*self.rates.brokers], [*self.rates.brokers.values()])
        node = self.nodes[self.rng.choice(BROKERS)]
        with self.acting(None):
            self.faults.land()
            if node not in self._stack and self._may_end(node)():
                faults[fault](node)

    def kill(self, node: StackBroker) -> None:
        """Ends a process of a broker; the next step of the broker starts another."""
        self.trace.append(f"{self.clock.now:.1f} kill {node.name}")
        if node.broker is not None:
            node.broker.gate.kill()
        node.frozen_until = self.clock.now + self.rng.choice([0, 0, 3, 12])

    def _freeze(self, node: StackBroker | StackController) -> None:
        actor = self.rng.choice([node, *self.offices])
        self.trace.append(f"{self.clock.now:.1f} freeze {actor.name}")
        actor.frozen_until = self.clock.now + self.rng.choice([2, 8, 15])

    def cut_power(self, node: StackBroker, commits: int | None = None) -> None:
        """A broker goes down, and the ends of its tables go with it: perhaps of its log alone."""
        if self._may_lose(node):
            self._damage(node)
            counts = (commits or self.rng.randrange(1, 8), commits or self.rng.randrange(8))
            tables = (node.root.child(LOG.name), node.root.child(REPLICAS.name))
            lost = [lose_end(table, count) for table, count in zip(tables, counts, strict=True)]
            self._tell(LOSES_END, f"{node.name} loses the last {lost} commits")

    def tear(self, node: StackBroker) -> None:
        """A broker goes down, and the last files of one of its tables are not whole, or the last commit is not."""
        if self._may_lose(node):
            self._damage(node)
            table = node.root.child(self.rng.choice([LOG.name, LOG.name, LOG.name, REPLICAS.name]))
            part = self.rng.choice([0, 0.5])
            if self.rng.random() < 0.7:
                torn = tear_end(table, self.rng.randrange(1, 4), part)
            else:
                torn = tear_commit(table, part)
            self._tell(TORN, f"{node.name}: {part} is left of {torn}")

    def empty_root(self, node: StackBroker) -> None:
        """A broker goes down, and its root is formatted anew."""
        if self._may_lose(node):
            self._damage(node)
            self._format_anew(node)
            self._tell(EMPTIED, f"{node.name} loses its root")

    def _format_anew(self, node: StackBroker) -> None:
        node.root.delete_folder()
        format_broker(node.root, self.cluster.cluster_id, node.number)

    def _replace_root(self, node: StackBroker) -> None:
        """What an operator does who is told so."""
        with self.acting(None):
            self.faults.lose_late(node.root)
            self._note_damage(node)
            self._format_anew(node)
            self._tell("replaced", f"{node.name} gets an empty root")

    def _tell(self, what: str, text: str) -> None:
        self.trace.append(f"{self.clock.now:.1f} {text}")
        self.faults.count(what)

    def _damage(self, node: StackBroker) -> None:
        self.kill(node)
        self.faults.lose_late(node.root)
        self._note_damage(node)
        if self.rng.random() < 0.3:  # it may be back before a controller looks
            for office in self.offices:
                office.frozen_until = self.clock.now + 3

    def _note_damage(self, node: StackBroker) -> None:
        table = BrokerTable.open_or_create(self.cluster.root, node.number)
        self.damaged[node.number] = table.registration.broker_epoch if table.registration else 0

    def _may_lose(self, node: StackBroker) -> bool:
        """Whether another member of each ISR lives, is known to, and keeps what was acknowledged."""
        self.faults.land(all_of_them=True)
        self._note_whole()
        seen = [n for n in self.nodes.values() if n is not node and n not in self._stack and n.is_known_to_live]
        others = {n.number: n.epoch for n in seen if self.clock.now >= n.frozen_until}
        keeping = [[n for n, epoch in others.items() if r.isr_epoch(n) == epoch] for r in self.partitions().values()]
        return not self.damaged and all(keeping)

    def _may_end(self, node: StackBroker) -> Callable[[], bool]:
        """Whether a broker may end: while one has lost records, and still counts, the others keep them."""

        def may_end() -> bool:
            with self.acting(None):
                self._note_whole()
            return all(damaged == node.number for damaged in self.damaged)

        return may_end

    def _is_awaited(self) -> bool:
        """Whether one that has lost records is in an ISR as the process that had them: until the controller sees to
        that, nothing else breaks."""
        registrations = self.partitions().values() if self.damaged else ()
        return any(n in r.isr and r.isr_epoch(n) <= epoch for r in registrations for n, epoch in self.damaged.items())

    def _note_whole(self) -> None:
        """Who was taken back into every ISR has all again."""
        registrations = self.partitions().values()
        for number, epoch in list(self.damaged.items()):
            if all(number in r.isr and r.isr_epoch(number) > epoch for r in registrations):
                del self.damaged[number]

    # What there is to see

    def partitions(self) -> dict[TopicIdPartition, PartitionRegistration]:
        self.cluster.metadata.refresh()
        return dict(self.cluster.metadata.partitions)

    def calm(self) -> None:
        """All live and nothing breaks until every replica is in sync and committed up to its end."""
        with self.acting(None):
            self.faults.land(all_of_them=True)
        actors: list[Process] = [*self.nodes.values(), *self.offices]
        for actor in actors:
            actor.frozen_until = 0.0
        self._fetch_all(True)
        for _ in range(CALM_ROUNDS):
            for actor in actors:
                self.clock.now += 0.2
                self.run(actor)
            if self.is_whole():
                self._fetch_all(False)
                return
        raise Violation("the_cluster_heals", f"not whole after {CALM_ROUNDS} rounds: {self.differences()}")

    def _fetch_all(self, all_of_it: bool) -> None:
        for node in self.nodes.values():
            node.fetches_all = all_of_it

    def logs(self) -> dict[int, ReplicaLog]:
        return {number: ReplicaLog.open(node.root.child(LOG.name)) for number, node in self.nodes.items()}

    def is_whole(self) -> bool:
        return all(set(r.isr) == set(BROKERS) for r in self.partitions().values()) and not self.differences()

    def differences(self) -> list[str]:
        """Which replicas are not in sync, do not end alike, or have records that are not committed."""
        logs, found = self.logs(), []
        for partition, registration in self.partitions().items():
            if set(registration.isr) != set(BROKERS):
                found.append(f"{partition.partition}: leader {registration.leader}, ISR {registration.isr}")
            ends = {number: log.current().known(partition).log_end for number, log in logs.items()}
            if len(set(ends.values())) != 1:
                found.append(f"{partition.partition}: ends {ends}")
            if registration.leader not in self.nodes:
                continue
            row = ReplicaTable.open(self.nodes[registration.leader].root).replicas.get(partition)
            if row is None or row.high_watermark != ends[registration.leader].offset:
                found.append(f"{partition.partition}: HW {row.high_watermark if row else None}, ends {ends}")
        return found
