"""Faults of the cluster root as a whole: another one lies at its address for a while, or it is lost for good.

In the first case it is an older copy of the root, an empty folder, or the root of another cluster. Processes run
meanwhile, end and begin. Controllers and producers that begin take it for the right one, because they have seen no
other. So when the right root is back, an operator starts those processes again, and no others.

In the second case an operator makes a new root from the roots of the brokers, and tries again when that fails. The old
root is gone, or comes back, and its processes go on with it beside those of the new one until the storm ends. With the
cluster root the root of a broker may be lost, if the recovery says that no acknowledged record is. Otherwise it is
found, and given, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from random import Random
from typing import Protocol

from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.server.periodic_task import BrokerKilled
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.commit_format import last_version
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.root_recovery import Plan, Recovery, is_finished, open_broker_roots
from lakelog.replication.storage.tables.cluster_copy import read_copy
from lakelog.schemas import METADATA
from lakelog.verification.memory_root import File
from lakelog.verification.simulation.history_events import Violation
from lakelog.verification.simulation.stack.disasters import BROKERS, BreakableWorld, Disasters
from lakelog.verification.simulation.stack.faulty_store import StoreUser
from lakelog.verification.simulation.stack.rates import (
    ASTRAY,
    EMPTY,
    FENCED,
    LOST_TOGETHER,
    OLDER,
    OTHERS,
    RECOVERED,
)
from lakelog.verification.simulation.stack.stack_processes import Process, StackBroker, StackController
from lakelog.verification.simulation.stack.stack_producers import PARTITIONS, TOPIC, StackProducer

_BACKS_UP = 0.01  # the probability that the root is backed up at an event
_SECONDS = 1, 4, 15, 40
_COMES_BACK = 0.5  # the probability that a lost root comes back
_RESTORES = 0.1  # the probability that a broker's root is restored from before a recovery at an event, if it may be
_IS_ASTRAY = 0.5  # the probability that a broker with a root of before is started on a root that has come back
_LOSES_ANOTHER = 0.5  # the probability that a broker's root is lost with the cluster root, if one may be missing
_TRIES = 5  # of a recovery beside faults; the next one meets none

Folders = Mapping[str, Mapping[str, File]]


class _MayBeLost(Exception):
    """A recovery says that acknowledged records may be lost."""


class Operator:
    """Runs `lakelog recover`."""

    name, keeps_records, is_dead = "operator", False, False

    def __init__(self) -> None:
        self.outage: str | None = None
        self.accesses = 0
        self.frozen_until = 0.0

    def may_write(self, _: str) -> bool:
        return True

    def die(self) -> bool:
        return True


class RootWorld(BreakableWorld, Protocol):
    """The part of the world that `ClusterRoots` needs."""

    disasters: Disasters
    controllers: list[StackController]
    clients: list[StackProducer]

    def acting(self, actor: StoreUser | None) -> AbstractContextManager[None]:
        """Inside the block this process uses the store; None is the simulation itself."""

    def is_busy(self, process: Process) -> bool:
        """Whether the process is in the middle of a step."""

    def logs(self) -> Mapping[int, ReplicaLog]:
        """The brokers' logs as they are now."""

    def processes(self) -> list[Process]:
        """Brokers, controllers and producers."""


class ClusterRoots:
    """What lies at the address of one world's cluster root. `is_wrong`: whether it is another root now. `rng`: a stream
    of its own, so that a history without these faults does not depend on them."""

    def __init__(self, world: RootWorld, seed: int) -> None:
        self._world = world
        self.rng = Random(seed)
        self.is_wrong = False
        self.was_wrong = False
        self._shows_right = True
        self._hidden: Folders = {}  # while a root is wrong: the folders of the root that no process sees now
        self._until = 0.0
        self._older: Folders = {}
        self._older_version = -1
        self._others: Folders = {}
        self._knowing: list[object] = []
        self._is_recovering = False
        self._count = 1  # of cluster roots
        self._lost: list[Cluster] = []  # clusters that have come back after they were recovered elsewhere

    @property
    def is_right(self) -> bool:
        """Whether the right root is at its address, and is not being recovered."""
        return not self.is_wrong and not self._is_recovering

    def happen(self) -> None:
        """Replaces the root or puts the right one back, if that is drawn, due and allowed. For each event of a storm.

        Nothing else breaks while a broker that has lost records is still in an ISR, see `Disasters`. An older copy
        comes only when all brokers have seen more: one that has not would go on in the copy without an error.
        """
        rates, now = self._world.rates, self._world.clock.now
        if self._is_recovering:
            return
        if rates.recovers and self.is_right and self.rng.random() < rates.recovers and self._may_be_lost():
            self._world.disasters.back_up(self._drawn())
            is_another_lost = rates.min_isr > 1 and self.rng.random() < _LOSES_ANOTHER
            self.lose(self.rng.random() < _COMES_BACK, self._drawn() if is_another_lost else None)
        elif rates.recovers and self.is_right and self.rng.random() < _RESTORES:
            self._world.disasters.restore_from_before()
        elif self.is_wrong:
            if now >= self._until:
                self.put_back()
        elif rates.cluster_roots:
            if not self._older or self.rng.random() < _BACKS_UP:
                self.back_up()
            if self.rng.random() < rates.cluster_roots and not self._world.disasters.is_awaited():
                self.replace(self.rng.choice([OLDER, EMPTY, OTHERS] if self._is_known_as_older() else [EMPTY, OTHERS]))
                self._until = now + self.rng.choice(_SECONDS)

    def back_up(self) -> None:
        """Keeps a copy of the root as it is now."""
        self._older, self._older_version = self._folders(self._uri), last_version(self._metadata)

    def _is_known_as_older(self) -> bool:
        nodes = self._world.nodes.values()
        noted = [self._world.cluster.seen_by(node.root) for node in nodes]
        return all(
            [self._knows_better(cluster) for node in nodes for cluster in node.clusters]
            + [METADATA.name in states and states[METADATA.name].version > self._older_version for states in noted]
        )

    def _knows_better(self, cluster: Cluster) -> bool:
        return cluster.guard.states(METADATA.name)[METADATA.name].version > self._older_version

    def replace(self, kind: str) -> None:
        """Puts another root at the address, until `put_back`: an OLDER copy, as `back_up` has made it last, an EMPTY
        folder, or OTHERS, the root of another cluster, which has a topic of the same name."""
        hidden = {OLDER: self._older, EMPTY: {self._uri: {}}, OTHERS: self._of_others() if kind == OTHERS else {}}[kind]
        self._world.faults.land(all_of_them=True)
        self._knowing = [
            begun
            for process in self._world.processes()
            for begun, cluster in zip(process.begun, process.clusters, strict=True)
            if kind != OLDER or self._knows_better(cluster)
        ]
        self._put(hidden)
        self._tell(kind, f"the cluster root is replaced by {kind}")

    def _put(self, hidden: Folders) -> None:
        self._hidden = {folder: dict(files) for folder, files in hidden.items()}
        self.is_wrong = self.was_wrong = True

    def put_back(self) -> None:
        """Puts the right root back. What was written to the other one is lost, also what is late. Processes that took
        the other one for the right one end: they began meanwhile, or had seen no more than the copy."""
        self._world.faults.lose_late(self._world.cluster.root)
        self.show(is_right=True)
        self.is_wrong, self._hidden = False, {}
        self._tell("put back", "the right cluster root is back")
        for process in self._world.processes():
            if not all(any(begun is knowing for knowing in self._knowing) for begun in process.begun):
                process.kill()

    def _may_be_lost(self) -> bool:
        """Whether the root was copied, all brokers have what they ever had, and none is in the middle of a step.
        Nothing is lost then."""
        world = self._world
        servers = [process for process in world.processes() if not isinstance(process, StackProducer)]
        return (
            not self._lost and self._is_copied() and world.disasters.is_whole() and not any(map(world.is_busy, servers))
        )

    def _is_copied(self) -> bool:
        for node in self._world.nodes.values():
            with suppress(LakelogException):  # it has no beginning: its root was emptied, and a late commit has landed
                copy = read_copy(node.root).get(METADATA.name)
                if copy is not None and copy.source.generation == self._world.cluster.generation:
                    return True
        return False

    def _drawn(self) -> StackBroker:
        return self.rng.choice([*self._world.nodes.values()])

    def lose(self, comes_back: bool, missing: StackBroker | None = None) -> None:
        """The cluster root is lost, and a new one is made from the roots of the brokers. `missing`: a broker whose root
        is lost with it, unless the recovery says that it is needed."""
        world, old = self._world, self._world.cluster
        self._tell(FENCED if comes_back else RECOVERED, f"the cluster root is lost{' for a while' * comes_back}")
        if not comes_back:
            for process in world.processes():
                process.kill()
            world.faults.land(all_of_them=True)
            self._put({self._uri: {}})
        self._is_recovering = True
        try:
            root, is_missing = self._recovered_without(missing) if missing else (self._recovered(()), False)
        finally:
            self._is_recovering = False
        if missing and is_missing:
            world.disasters.replace_lost_root(missing)
            self._tell(LOST_TOGETHER, f"{missing.name} loses its root, too")
        world.faults.lose_late(old.root)
        self.show(is_right=True)
        self.is_wrong, self._hidden, self.was_wrong = False, {}, True
        self._older, self._others = {}, {}
        self._check_epochs(root)
        self._lost.append(old)
        self._move(root.uri)
        if not comes_back:
            self.end_lost()

    def _recovered_without(self, missing: StackBroker) -> tuple[StorageRoot, bool]:
        """The new root, and whether it was made without the root of this broker."""
        folders = self._folders(missing.root.uri)
        missing.kill()
        self._world.faults.lose_late(missing.root)
        missing.root.delete_folder()
        try:
            return self._recovered((missing,), _refuse_loss), True
        except _MayBeLost:
            self._world.trace.append(f"{self._world.clock.now:.1f} the root of {missing.name} is found")
            self._world.store.folders.update(folders)
            return self._recovered(()), False

    def _recovered(
        self, missing: Sequence[StackBroker], check: Callable[[Plan], None] = lambda _: None
    ) -> StorageRoot:  # fmt: skip
        world, operator = self._world, Operator()
        self._count += 1
        root = StorageRoot.of(f"{world.store.uri}/cluster-{self._count}")
        given = [(node.number, node.root.uri) for node in world.nodes.values() if node not in missing]
        for number in range(_TRIES + 1):
            try:
                with world.acting(operator if number < _TRIES else None):
                    Recovery(root, open_broker_roots(given, Config(), may_mend=True), Config()).execute(check)
                return root
            except (LakelogException, OSError, BrokerKilled) as error:
                operator = Operator()
                world.trace.append(f"{world.clock.now:.1f} recover: {type(error).__name__}: {error}")
                with world.acting(None):
                    if is_finished(root):  # its last answer was lost
                        return root
                if number == _TRIES:
                    raise
        raise AssertionError("the last one returns or raises")

    def _check_epochs(self, root: StorageRoot) -> None:
        """Raises Violation unless each leader has an epoch above those of all logs."""
        logs = self._world.logs()
        for partition, now in Cluster.open(root.uri).metadata.partitions.items():
            seen = [_epoch(log, partition) for log in logs.values()]
            if now.leader_epoch <= max(seen):
                raise Violation("epochs_only_go_up", f"{now} is made from logs with epochs {seen}")

    def _move(self, uri: str) -> None:
        """New processes work with the new root; those that run stay with the old one."""
        world = self._world
        world.cluster = Cluster.open(uri)
        for node in world.nodes.values():
            node.move(uri)
        world.controllers += [StackController(f"{each.name}-of-{self._count}", uri) for each in world.controllers]
        for client in world.clients:
            client.cluster = uri
            if self.rng.random() < 0.5:
                client.kill()

    def lead_astray(self, node: StackBroker) -> None:
        """Starts a broker on a cluster root that has come back after it was recovered elsewhere, if that is drawn."""
        if self._lost and self.rng.random() < _IS_ASTRAY:
            self.start_on_lost(node)

    def start_on_lost(self, node: StackBroker) -> None:
        """Starts a broker on the cluster root that has come back last."""
        self._tell(ASTRAY, f"{node.name} is started on an old cluster root")
        with self._world.acting(node):
            node.start_at(self._lost[-1].root.uri)

    def end_lost(self) -> None:
        """The operator ends what still works with an old root, and deletes it."""
        world = self._world
        for old in self._lost:
            uri = old.root.uri
            world.controllers[:] = [each for each in world.controllers if each.may_write(f"{world.cluster.root.uri}/")]
            for node in world.nodes.values():
                node.end_older()
            for client in world.clients:
                if any(cluster.root.uri == uri for cluster in client.clusters):
                    client.kill()
            world.faults.lose_late(old.root)
            old.root.delete_folder()
        self._lost.clear()

    def show(self, is_right: bool) -> None:
        """Lets the store have the right root, as the simulation itself sees it, or the one that all processes see."""
        if self.is_wrong and is_right != self._shows_right:
            folders, seen = self._world.store.folders, self._folders(self._uri)
            for folder in seen:
                del folders[folder]
            folders.update({folder: dict(files) for folder, files in self._hidden.items()})
            self._hidden, self._shows_right = seen, is_right

    @property
    def _metadata(self) -> StorageRoot:
        return self._world.cluster.root.child(METADATA.name)

    @property
    def _uri(self) -> str:
        return self._world.cluster.root.uri

    def _folders(self, uri: str) -> dict[str, dict[str, File]]:
        folders = self._world.store.folders.items()
        return {folder: dict(files) for folder, files in folders if folder == uri or folder.startswith(f"{uri}/")}

    def _of_others(self) -> Folders:
        if not self._others:
            root = StorageRoot.of(f"{self._world.store.uri}/others")
            format_cluster(root, Config())
            cluster = Cluster.open(root.uri)
            cluster.topics.change([Topic(TOPIC, "others-id", PARTITIONS)], (), {"who": "world"})
            made = (new_partition(TOPIC, "others-id", p, BROKERS, BROKERS) for p in range(PARTITIONS))
            cluster.metadata.put(made, {"who": "world"})
            found = self._folders(root.uri)
            self._others = {self._uri + folder.removeprefix(root.uri): files for folder, files in found.items()}
            root.delete_folder()
        return self._others

    def _tell(self, what: str, text: str) -> None:
        self._world.trace.append(f"{self._world.clock.now:.1f} {text}")
        self._world.faults.count(what)


def _refuse_loss(plan: Plan) -> None:
    """Raises _MayBeLost as the command would refuse to go on."""
    if any(each.loss is not None for each in plan.partitions):
        raise _MayBeLost


def _epoch(log: ReplicaLog, partition: TopicIdPartition) -> int:
    """The highest leader epoch that a log knows of a partition."""
    known = log.current().known(partition)
    return max([known.role.leader_epoch, *(entry.leader_epoch for entry in known.lineage)], default=-1)
