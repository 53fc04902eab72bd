"""A cluster of three brokers and two controllers without Spark and threads, over a store in memory with faults.

One number, the seed, determines which process takes the next step, what breaks and when. Other processes run in the
middle of a step while its process waits, or to get ahead of its commit.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_broker, format_cluster, storage_root
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from lakelog.verification.memory_root import MemoryStore
from lakelog.verification.simulation.history_events import Violation
from lakelog.verification.simulation.stack.disasters import BROKERS, Disasters
from lakelog.verification.simulation.stack.faulty_store import FaultyStore, StoreUser
from lakelog.verification.simulation.stack.one_thread import Changes, Clock, in_one_thread
from lakelog.verification.simulation.stack.rates import COPIED, Rates
from lakelog.verification.simulation.stack.stack_cluster_roots import ClusterRoots
from lakelog.verification.simulation.stack.stack_processes import Process, StackBroker, StackController
from lakelog.verification.simulation.stack.stack_producers import PARTITIONS, TOPIC, Interrupted, StackProducer
from lakelog.verification.simulation.stack.step_invariants import Committed, check_changes, checked, no_error_gets_out
from lakelog.verification.simulation.stack.voting_roots import VotingRoots

TOPIC_ID = "flights-id"
CLIENTS = 4  # at most
DEPTH = 3  # how deep steps may be nested
# To the store, in a storm. After that no event follows, and steps end by themselves: where steps nest for hours of
# their clock, a storm would have ten times as many, and take minutes.
ACCESSES_OF_A_STORM = 100_000
CALM_ROUNDS = 150
PATIENCE = 3.0  # seconds that a broker waits for its turn at most, unless it is frozen
BROKER = {
    "replica.fetch.max.bytes": "1000",  # one record of a partition at a time, so a leader may die between two
    "log.cleaner.min.files": "8",
    "log.segment.bytes": "65536",
    "log.retention.ms": "-1",  # clocks are wrong by days
}


class StackWorld:
    """All processes and tables under one seed. `trace` has the events for a reader. The world works until `changes`
    is closed."""

    def __init__(self, seed: int, changes: Changes, rates: Rates | None = None, **properties: str) -> None:
        self.seed, self.rng, self.clock, self.rates = seed, random.Random(seed), Clock(), rates or Rates()
        self.trace: list[str] = []
        self.published_hws: set[Committed] = set()
        self._skews: dict[str, float] = {}
        self.clock.skew = self._skew
        self._stack: list[StoreUser | None] = []
        self.faults = FaultyStore(self.rng, self.rates, self._actor, self.let_others)
        in_one_thread(changes, self.clock, random.Random(seed))
        for place in ("segment", "pieces"):
            changes.change(f"storage.log.{place}", "LEAST_BYTES", self.rates.row_group_bytes)
        changes.change("storage.delta.commit_format", "INLINED_BYTES", self.rates.inlined_bytes)
        changes.change("storage.delta.delta_log", "CHECKPOINT_COMMITS", self.rates.checkpoint_commits)
        self.store = MemoryStore(f"world-{seed}", self.rng.random() < 0.5, self.clock.wall, self.faults)
        self.roots = ClusterRoots(self, seed)
        self.cluster: Cluster
        self.voting = VotingRoots(self, seed, changes) if self.rates.cluster_count > 1 else None
        changes.change("storage.delta.quorum_member", "SLOTS_A_SEAL", self.rates.slots_a_seal)
        self._are_apart = self.rng.random() < 0.5  # otherwise all share their polls, as in one process
        self.store.process = self._looker
        changes.enter_context(self.store.opened())
        changes.change(ReplicaTable, "publish", checked(ReplicaTable.publish, self._actor, self.published_hws))
        for place in ("send_executor", "sender", "purgatory"):
            changes.change(f"clients.{place}", "pause", self._pause)
        self.disasters = Disasters(self)
        self._format(properties)
        self.controllers = [StackController(f"controller-{number}", self.cluster.root.uri) for number in (1, 2)]
        self.clients = [StackProducer(f"producer-{number}", self.cluster.root.uri) for number in (1, 2)]
        self._skews = {actor.name: self.rng.uniform(-1, 1) * self.rates.skew for actor in self.processes()}
        if self.voting:
            for actor in self.processes():
                actor.cluster_roots = self.voting.all
        for client in self.clients:
            client.padding, client.in_flight = b"." * self.rates.padding, self.rates.in_flight
            client.keys = self.rates.keys

    def _actor(self) -> StoreUser | None:
        return self._stack[-1] if self._stack else None

    @property
    def actor(self) -> StoreUser | None:
        """The process that uses the store now; None is the simulation itself."""
        return self._actor()

    @property
    def running(self) -> list[StoreUser | None]:
        """The processes that are in the middle of a step."""
        return list(self._stack)

    def _looker(self) -> str | None:
        """The process whose polls the running one may share. The simulation may see another cluster root than all
        processes."""
        actor = self._actor()
        if actor is None:
            return "world" if self.roots.was_wrong else None
        return actor.name if self._are_apart else None

    def _skew(self) -> float:
        """The clock error of the running process: each has its own machine."""
        actor = self._actor()
        return self._skews.get(actor.name, 0.0) if actor is not None else 0.0

    def is_busy(self, process: Process) -> bool:
        """Whether the process is in the middle of a step."""
        return process in self._stack

    def _format(self, properties: dict[str, str]) -> None:
        uri = self.voting.uri if self.voting else f"{self.store.uri}/cluster"
        root = storage_root(uri, "cluster", Config())
        cluster_id = format_cluster(root, Config())
        if self.voting:
            self.voting.ledger.is_formatted = True
        self.cluster = Cluster.open(root.uri)
        self.nodes: dict[int, StackBroker] = {}
        for number in BROKERS:
            storage = StorageRoot.of(f"{self.store.uri}/broker-{number}")
            format_broker(storage, cluster_id, number)
            node = StackBroker(number, root.uri, storage, self.rates.maintains, **{**BROKER, **properties})
            node.may_die = partial(self.disasters.may_end, node)
            self.nodes[number] = node
        for node in self.nodes.values():
            node.start()
        self.need(self.rates.min_isr)
        replicas = [tuple(BROKERS[(p + n) % len(BROKERS)] for n in range(len(BROKERS))) for p in range(PARTITIONS)]
        made = (new_partition(TOPIC, TOPIC_ID, p, ar, BROKERS) for p, ar in enumerate(replicas))
        joined = (replace(r, isr_epochs=dict.fromkeys(r.isr, 1)) for r in made)
        self.cluster.metadata.put(joined, {"who": "world"})
        self._seen = self._published()

    def need(self, min_isr: int) -> None:
        """Sets the topic's `min.insync.replicas`."""
        configs = {} if min_isr == 1 else {"min.insync.replicas": str(min_isr)}
        configs |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"} if self.rates.keys else {}
        self.cluster.topics.change([Topic(TOPIC, TOPIC_ID, PARTITIONS, configs)], (), {"who": "world"})

    def _pause(self, milliseconds: int, deadline: float, *_: object) -> None:
        self.clock.now += max(0.0, min(0.5, deadline - self.clock.now))
        if self.faults.has_faults and self.rng.random() < self.rates.interrupted:
            raise Interrupted
        self.interrupt()

    # Steps

    @contextmanager
    def acting(self, actor: StoreUser | None) -> Iterator[None]:
        """Inside the block this process uses the store. None is the simulation itself, which meets no faults."""
        self._stack.append(actor)
        self.roots.show(actor is None)
        try:
            yield
        finally:
            self._stack.pop()
            self.roots.show(self._actor() is None)
            if actor is not None:
                actor.outage = None

    def run(self, actor: Process) -> None:
        """Runs one step of a process, unless it is frozen, and checks the invariants of a step."""
        if self.clock.now >= actor.frozen_until:
            self.trace.append(f"{self.clock.now:.1f} {'  ' * len(self._stack)}{actor.name}")
            actor.accesses = 0
            if self.voting:
                self.voting.note_step(actor)
            if isinstance(actor, StackBroker):
                actor.moved_at = self.clock.now
            with self.acting(actor), no_error_gets_out():
                actor.step(self.rng)
            with self.acting(None):
                self._seen, before = self._published(), self._seen
                check_changes(before, self._seen, self.logs)
            if isinstance(actor, StackBroker):
                self.disasters.mend(actor)

    def let_others(self, seconds: float) -> None:
        """Lets others run in the middle of a step until `seconds` have passed, so that they may take it for dead."""
        until = self.clock.now + seconds
        self.interrupt()
        while self.clock.now < until and len(self._stack) <= DEPTH:
            self.clock.now += self.rng.uniform(0.1, 0.5)
            self.interrupt()

    def interrupt(self) -> None:
        """Lets another process run in the middle of a step."""
        others = [actor for actor in self.processes() if actor not in self._stack]
        if len(self._stack) <= DEPTH and others and not self._is_storm_over():
            self.happen(others)

    def happen(self, actors: Collection[Process]) -> None:
        """One event: mostly a step of a process, sometimes a fault."""
        self.clock.now += self.rng.uniform(0.05, 0.4)
        with self.acting(None):
            self.faults.is_careful = self.disasters.is_awaited()
            if self.faults.has_faults:
                self.roots.happen()
                if self.voting:
                    self.voting.happen()
                self._copy()
        if self.faults.has_faults and self.rng.random() < self.rates.breaks:
            with no_error_gets_out():
                self.disasters.happen()
        else:
            self.run(self._starving(actors) or self.rng.choice(list(actors)))

    def _copy(self) -> None:
        """Copies a producer, if that is drawn and allowed."""
        may_copy = self.rates.copies and not self.roots.is_wrong and len(self.clients) < CLIENTS
        if may_copy and self.roots.rng.random() < self.rates.copies:
            client = self.roots.rng.choice(self.clients)
            self.faults.is_careful = True
            with self.acting(client):
                copy = client.copied(f"producer-{len(self.clients) + 1}")
            if copy is not None:
                self.clients.append(copy)
                self.faults.count(COPIED)
                self.trace.append(f"{self.clock.now:.1f} {client.name} is copied, as {copy.name}")

    def _starving(self, actors: Collection[Process]) -> StackBroker | None:
        """The broker that has waited longest, if it waited so long that it would soon count as dead."""
        nodes = [
            n
            for n in actors
            if isinstance(n, StackBroker) and self.clock.now >= max(n.frozen_until, n.moved_at + PATIENCE)
        ]
        return min(nodes, key=lambda node: node.moved_at, default=None)

    def processes(self) -> list[Process]:
        """Brokers, controllers and producers."""
        return [*self.servers(), *self.clients]

    def storm(self, events: Iterable[int]) -> None:
        """Steps with faults. Each event draws from its own seed, so that `shrink_stack` can leave events out."""
        self.faults.has_faults = True
        for event in events:
            if self._is_storm_over():
                break
            self.rng.seed(f"{self.seed}/{event}")
            self.roots.rng.seed(f"roots of {self.seed}/{event}")
            if self.voting:
                self.voting.rng.seed(f"voting roots of {self.seed}/{event}")
            self.happen(self.processes())
        self.faults.has_faults = False

    def _is_storm_over(self) -> bool:
        return self.faults.has_faults and self.faults.accesses > ACCESSES_OF_A_STORM

    # State

    def partitions(self) -> dict[TopicIdPartition, PartitionRegistration]:
        self.cluster.metadata.refresh()
        return dict(self.cluster.metadata.partitions)

    def _published(self) -> dict[TopicIdPartition, PartitionRegistration]:
        return self.voting.partitions() if self.voting else self.partitions()

    def calm(self) -> None:
        """Runs without faults until every replica is in sync and all records are committed. Raises Violation if that
        does not come."""
        with self.acting(None):
            if self.roots.is_wrong:
                self.roots.put_back()
            self.roots.end_lost()
            self.faults.land(all_of_them=True)
            if self.voting:
                self.voting.mend()
        for actor in self.servers():
            actor.frozen_until = 0.0
        self._fetch_all(True)
        for _ in range(CALM_ROUNDS):
            self.go_on()
            if self.is_whole():
                self._fetch_all(False)
                return
        raise Violation("the_cluster_heals", f"not whole after {CALM_ROUNDS} rounds: {self.differences()}")

    def go_on(self) -> None:
        """Runs one step of every server."""
        for actor in self.servers():
            self.clock.now += 0.2
            self.run(actor)

    def servers(self) -> list[Process]:
        """Brokers and controllers."""
        return [*self.nodes.values(), *self.controllers]

    def _fetch_all(self, all_of_it: bool) -> None:
        for node in self.nodes.values():
            node.fetches_all = all_of_it

    def logs(self) -> dict[int, ReplicaLog]:
        return {number: ReplicaLog.open(node.root.child(LOG.name)) for number, node in self.nodes.items()}

    def is_whole(self) -> bool:
        return all(set(r.isr) == set(BROKERS) for r in self.partitions().values()) and not self.differences()

    def differences(self) -> list[str]:
        """The reasons why the cluster is not whole: brokers that do not run, unreadable logs, replicas out of sync,
        different log ends, uncommitted records."""
        found = [f"{node.name} does not run" for node in self.nodes.values() if node.epoch is None]
        try:
            logs = self.logs()
        except LakelogException as error:
            return [*found, str(error)]
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
