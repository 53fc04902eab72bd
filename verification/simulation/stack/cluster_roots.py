"""Faults of the cluster root as a whole: for a while another one lies at its address. Then the right one is back.

It is an older copy of the root, an empty folder, or the root of another cluster. Processes run meanwhile, end and
begin. Controllers and producers that begin take it for the right one, because they have seen no other. So when the
right root is back, an operator starts those processes again, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Protocol

from lakelog.replication.config import Config
from lakelog.replication.protocol.elections import new_partition
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.cluster import Cluster, format_cluster
from lakelog.replication.storage.delta.commit_format import last_version
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.schemas import METADATA
from lakelog.verification.memory_root import File
from lakelog.verification.simulation.stack.disasters import BROKERS, BreakableWorld, Disasters
from lakelog.verification.simulation.stack.rates import EMPTY, OLDER, OTHERS
from lakelog.verification.simulation.stack.stack_processes import Process
from lakelog.verification.simulation.stack.stack_producers import PARTITIONS, TOPIC

_BACKS_UP = 0.01  # the probability that the root is backed up at an event
_SECONDS = 1, 4, 15, 40

Folders = Mapping[str, Mapping[str, File]]


class RootWorld(BreakableWorld, Protocol):
    """The part of the world that `ClusterRoots` needs."""

    disasters: Disasters

    def processes(self) -> list[Process]:
        """Brokers, controllers and producers."""


class ClusterRoots:
    """What lies at the address of one world's cluster root. `is_wrong`: whether it is another root now. `rng`: a stream
    of its own, so that a history without these faults does not depend on them."""

    def __init__(self, world: RootWorld) -> None:
        self._world = world
        self.rng = Random()
        self.is_wrong = False
        self.was_wrong = False
        self._shows_right = True
        self._hidden: Folders = {}  # while a root is wrong: the folders of the root that no process sees now
        self._until = 0.0
        self._older: Folders = {}
        self._older_version = -1
        self._others: Folders = {}
        self._knowing: list[object] = []

    def happen(self) -> None:
        """Replaces the root or puts the right one back, if that is drawn, due and allowed. For each event of a storm.

        Nothing else breaks while a broker that has lost records is still in an ISR, see `Disasters`. An older copy
        comes only when all brokers have seen more: one that has not would go on in the copy without an error.
        """
        rates, now = self._world.rates, self._world.clock.now
        if self.is_wrong:
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
        self._hidden = {folder: dict(files) for folder, files in hidden.items()}
        self.is_wrong = self.was_wrong = True
        self._tell(kind, f"the cluster root is replaced by {kind}")

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
