"""Faults of one of three cluster roots while the others go on: it is away, hangs, fails, or loses what it had.

A root that is lost is away first, for longer than a process relies on what it has seen there. Then it is empty, or an
older copy of it lies there, until an operator replaces it. Requests to the roots run in threads of a process, so one
root may answer much later than the others, when the process has gone on.

Some clusters have one root first. An operator lets two others vote during the storm, or after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol
from weakref import WeakSet

from lakelog.replication.errors import InconsistentClusterIdException, LakelogException
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.server.periodic_task import BrokerKilled
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit_format import commit_name
from lakelog.replication.storage.delta.quorum_root import QuorumRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.root_changes import RootChanges
from lakelog.replication.storage.tables.metadata_table import MetadataTable
from lakelog.schemas import METADATA
from lakelog.verification.memory_root import File
from lakelog.verification.simulation.stack.disasters import BreakableWorld
from lakelog.verification.simulation.stack.faulty_store import StoreUser
from lakelog.verification.simulation.stack.one_thread import Changes, NoPause
from lakelog.verification.simulation.stack.rates import (
    OTHERS_VOTE,
    ROOT_AWAY,
    ROOT_EMPTIED,
    ROOT_FAILS,
    ROOT_HANGS,
    ROOT_REPLACED,
    ROOT_RESTORED,
)
from lakelog.verification.simulation.stack.stack_cluster_roots import Operator
from lakelog.verification.simulation.stack.stack_processes import Process
from lakelog.verification.simulation.stack.stack_producers import Interrupted
from lakelog.verification.simulation.stack.vote_ledger import VoteLedger

COUNT = 3
_MOST = 3  # faults of a history: to replace a root takes many steps
_PAUSE_SECONDS = 5  # after a replacement that has failed
_KINDS = ROOT_AWAY, ROOT_AWAY, ROOT_HANGS, ROOT_FAILS, ROOT_EMPTIED, ROOT_RESTORED  # of a fault, one twice as often
_LOST = ROOT_EMPTIED, ROOT_RESTORED
_SECONDS = 1, 4, 15, 40, 400  # that a fault lasts
_SURE_SECONDS = 11  # a process relies for 10 s on what it has seen at a root
_HANGS_SECONDS = 10.0
_WAITS_SECONDS = 2.0  # between two looks of a process that waits for answers
_FAILS = 0.5  # the probability that an access fails at a root that fails at times
_IS_LATE = 0.1  # the probability that a thread of a process is late
_GOES_ON = 0.3  # the probability that a late thread goes on at an event
_BACKS_UP = 0.05  # the probability that a root is backed up at an event


class VotingWorld(BreakableWorld, Protocol):
    """The part of the world that `VotingRoots` needs."""

    def acting(self, actor: StoreUser | None) -> AbstractContextManager[None]:
        """Inside the block this process uses the store; None is the simulation itself."""

    def let_others(self, seconds: float) -> None:
        """Lets other processes run for `seconds`."""

    @property
    def running(self) -> Sequence[StoreUser | None]:
        """The processes that are in the middle of a step."""

    @property
    def actor(self) -> StoreUser | None:
        """The process that uses the store now."""

    def processes(self) -> Sequence[Process]:
        """Brokers, controllers and producers."""


class VotingRoots:
    """The three cluster roots of one world. `broken`: the one that has a fault, and its kind. `rng`: a stream of its
    own."""

    def __init__(self, world: VotingWorld, seed: int, changes: Changes) -> None:
        self._world = world
        self.rng = Random(f"voting roots of {seed}")
        self.uris = [f"{world.store.uri}/cluster-{name}" for name in "abc"]
        self.broken: tuple[str, str] | None = None
        self._until = 0.0
        self._is_lost, self._is_replacing = False, False
        self._have_hung: list[object] = []
        self._faults = 0
        self._late: list[tuple[StoreUser, Sequence[object], Callable[[], object]]] = []
        self._backups: dict[str, Mapping[str, Mapping[str, File]]] = {}
        self._published: dict[str, MetadataTable] = {}
        self._seen: dict[TopicIdPartition, PartitionRegistration] = {}
        self._seen_version = -1
        self._is_alone = world.rates.grows > 0  # the first root has no others yet
        self._in_flight: dict[str, list[object]] = {}  # processes in the step in which a root was lost or replaced
        self._is_cleared = False  # the lost root: its place is empty, and a new root may be made there
        self.ledger = VoteLedger(world.store, self.uris, changes, self._began_later, self._was_in_flight)
        self.ledger.began_with_one_root = self._is_alone
        world.faults.reach = self.reach
        inline = SimpleNamespace(
            Lock=threading.Lock, Event=NoPause,
            Condition=lambda lock=None: _Waiting(self._wait, lock),
        )  # fmt: skip
        changes.change("storage.delta.cluster_quorum", "_QUORUMS", WeakSet())  # those that end with this process
        for place in ("cluster_quorum", "known_roots", "quorum_member", "root_requests"):
            changes.change(f"storage.delta.{place}", "threading", inline)
        changes.change("storage.delta.root_requests", "start_thread", self._start_thread)

    @property
    def uri(self) -> str:
        """The URI of the cluster."""
        return self.uris[0] if self._is_alone else self.all

    @property
    def all(self) -> str:
        """The URIs of the roots that vote, or will."""
        return ",".join(self.uris)

    # Threads

    def _start_thread(self, run: Callable[[], object], name: str) -> None:
        self.begin(run, name.removeprefix("quorum "))

    def begin(self, target: Callable[[], object], uri: str) -> None:
        """Runs the work of a thread of the running process at one root, now or later."""
        actor = self._world.actor
        is_late = self.broken == (uri, ROOT_HANGS) or (self.has_faults and self.rng.random() < _IS_LATE)
        if actor is None or not is_late:
            target()
        else:
            self._late.append((actor, _begun(actor), target))

    def _wait(self, is_enough: Callable[[], bool], seconds: float) -> bool:
        """Lets time pass until a process has the answers that it waits for, or its time is over."""
        clock = self._world.clock
        until = clock.now + seconds
        while not is_enough() and clock.now < until:
            self._world.let_others(0)
            self._go_on()
            clock.now += _WAITS_SECONDS
        return is_enough()

    def _go_on(self, everything: bool = False) -> None:
        """Lets late threads go on: those that are drawn, or all."""
        for item in list(self._late):
            actor, begun, target = item
            if item in self._late and (everything or self.rng.random() < _GOES_ON):
                self._late.remove(item)
                if not begun or any(process is known for process in _begun(actor) for known in begun):
                    with self._world.acting(actor), suppress(BrokerKilled, Interrupted):
                        target()

    # Faults

    @property
    def has_faults(self) -> bool:
        """Whether the roots may break now: not while a broker that has lost records is still in an ISR."""
        return self._world.faults.has_faults and not self._world.faults.is_careful

    def reach(self, uri: str) -> None:
        """Called before a process reads or writes. Raises OSError if it cannot reach the root."""
        if self.broken is None or not uri.startswith(self.broken[0]):
            return
        kind = self.broken[1]
        if kind == ROOT_HANGS and self.has_faults and self._world.actor not in self._have_hung:
            self._have_hung.append(self._world.actor)  # once a fault: waiting is what takes most of a history's time
            self._world.let_others(_HANGS_SECONDS)
        if kind != ROOT_FAILS or self.rng.random() < _FAILS:
            if kind in _LOST and self._is_lost:
                return  # it answers, and has nothing, or what is old
            raise OSError(f"{uri}: no route to host")

    def happen(self) -> None:
        """Breaks a root, or mends the one that is broken, if that is drawn or due. For each event of a storm."""
        now = self._world.clock.now
        self._go_on()
        if self._is_alone:
            if not self._is_replacing and self.rng.random() < self._world.rates.grows:
                self._grow_in_time()
            return
        if self.rng.random() < _BACKS_UP:
            self.back_up(self.rng.choice(self.uris))
        if self.broken is None:
            may_break = self.has_faults and self._faults < _MOST
            if may_break and self.rng.random() < self._world.rates.root_faults:
                self.break_root(self.rng.choice(self.uris), self.rng.choice(_KINDS))
        elif now >= self._until and not self._is_replacing:
            self._mend_in_time()

    def _grow_in_time(self) -> None:
        self._is_replacing = True
        try:
            with self._world.acting(Operator()):
                self._grow()
        except (LakelogException, OSError, BrokerKilled) as error:
            self._world.trace.append(f"{self._world.clock.now:.1f} add: {type(error).__name__}: {error}")
        finally:
            self._is_replacing = False

    def _grow(self) -> None:
        RootChanges(Cluster.open(self.uris[0])).add(self.uris[1:])
        self._is_alone = False
        with self._world.acting(None):
            self._world.cluster = Cluster.open(self.all)
        for process in self._world.processes():
            process.cluster = self.all  # those that run find the others
        self._tell(OTHERS_VOTE, f"{self.uris[0]}: has two others")

    def break_root(self, uri: str, kind: str) -> None:
        """Begins a fault of a root."""
        if kind == ROOT_RESTORED and uri not in self._backups:
            kind = ROOT_AWAY
        self.broken, self._is_lost, self._have_hung = (uri, kind), False, []
        self._faults += 1
        self._until = self._world.clock.now + (_SURE_SECONDS if kind in _LOST else self.rng.choice(_SECONDS))
        self._tell(kind, f"{uri}: {kind}")

    def lose(self, uri: str, kind: str) -> None:
        """Loses a root at once."""
        self.break_root(uri, kind)
        self._world.clock.now = self._until
        self._lose(uri, kind)

    def _mend_in_time(self) -> None:
        assert self.broken is not None
        uri, kind = self.broken
        if kind not in _LOST:
            self._mended(uri)
        elif not self._is_lost:
            self._lose(uri, kind)
            self._until = self._world.clock.now + self.rng.choice(_SECONDS)
        else:
            self._is_replacing = True
            try:
                with self._world.acting(Operator()):
                    self._replace(uri)
            except (LakelogException, OSError, BrokerKilled) as error:
                self._world.trace.append(f"{self._world.clock.now:.1f} replace: {type(error).__name__}: {error}")
                self._until = self._world.clock.now + _PAUSE_SECONDS
            finally:
                self._is_replacing = False

    def _lose(self, uri: str, kind: str) -> None:
        self._is_lost = True
        self._is_cleared, self._in_flight[uri] = False, [*self._world.running]
        with self._world.acting(None):
            self._delete(uri)
            if kind == ROOT_RESTORED:
                for folder, files in self._backups[uri].items():
                    self._world.store.make_folder(folder)
                    for name, file in files.items():
                        self._world.store.folders[folder][name] = self._again(file)
        self._forget()
        self._tell("lost", f"{uri}: is lost")

    def _forget(self) -> None:
        """The simulation reaches a root that is away, so it may have seen the root a moment ago."""
        root = self._world.cluster.root
        assert isinstance(root, QuorumRoot)
        with self._world.acting(None):
            for member in root.quorum.roots:
                member.sure.clear()
                member.identity()

    def _again(self, file: File) -> File:
        """A file that is written again has another time of writing."""
        self._world.store._writes += 1
        return File(file.content, (file.stamp[0], int(self._world.clock.wall() * 1e9) + self._world.store._writes))

    def _delete(self, uri: str) -> None:
        root = StorageRoot.of(uri)
        if root.is_local:
            self._world.faults.lose_late(root)
        root.delete_folder()
        self._published.pop(uri, None)
        if root.is_local:
            root.create_folder()

    def _replace(self, uri: str) -> None:
        """As an operator does: empties the place of a lost root, and lets it vote on all tables. A process that brings
        the root what it lacks may go on with that afterwards."""
        self._in_flight.setdefault(uri, []).extend(self._world.running)
        if not self._is_cleared:
            with self._world.acting(None):
                self._delete(uri)
            self._is_cleared = True
        try:
            RootChanges(Cluster.open(self.uri)).replace(uri, uri)
        except InconsistentClusterIdException:  # what was sent to the old root has landed there
            self._is_cleared = False
            raise
        self._mended(uri)
        self._tell(ROOT_REPLACED, f"{uri}: is replaced")

    def _mended(self, uri: str) -> None:
        self.broken = None
        self._world.trace.append(f"{self._world.clock.now:.1f} {uri}: is there again")

    def mend(self) -> None:
        """Ends the fault, and lets all late threads go on. For the simulation itself."""
        while self._late:
            self._go_on(everything=True)
        if self._is_alone:
            self._grow()
        if self.broken is not None:
            uri, kind = self.broken
            if kind in _LOST:
                if not self._is_lost:
                    self._lose(uri, kind)
                with suppress(InconsistentClusterIdException):
                    self._replace(uri)
                if self.broken is not None:
                    self._replace(uri)
            else:
                self._mended(uri)

    def drawn(self) -> str:
        """The URI of one of the roots."""
        return self.rng.choice(self.uris)

    @contextmanager
    def without(self, uri: str) -> Iterator[None]:
        """Inside the block no process reaches this root."""
        self.broken = uri, ROOT_AWAY
        self._tell(ROOT_AWAY, f"{uri}: is away")
        try:
            yield
        finally:
            self._mended(uri)

    def note_step(self, actor: object) -> None:
        """A process begins a step."""
        for processes in self._in_flight.values():
            if actor in processes:
                processes.remove(actor)

    def _began_later(self, uri: str) -> bool:
        """Whether the root is lost, and the running process has begun its step after that."""
        actor = self._world.actor
        is_lost = self.broken is not None and self.broken[0] == uri and self._is_lost and not self._is_cleared
        return is_lost and actor is not None and actor not in self._in_flight[uri]

    def _was_in_flight(self, uri: str) -> bool:
        """Whether what is written now was sent to the root before it was lost or replaced, as far as anyone knows."""
        return self._world.actor is None or self._world.actor in self._in_flight.get(uri, ())

    def back_up(self, uri: str) -> None:
        """Keeps a copy of a root that is not broken."""
        folders = self._world.store.folders.items()
        if self.broken is None or self.broken[0] != uri:
            self._backups[uri] = {f: dict(files) for f, files in folders if f == uri or f.startswith(f"{uri}/")}

    # What is published

    def partitions(self) -> dict[TopicIdPartition, PartitionRegistration]:
        """The newest metadata that is published at any root. Reading it decides and publishes nothing."""
        with self._world.acting(None):
            for uri in self.uris:
                following = f"{uri}/{METADATA.name}/{commit_name(self._seen_version + 1)}"
                if self._world.store.find(following) is not None:
                    self._read(uri)
        return dict(self._seen)

    def _read(self, uri: str) -> None:
        try:
            if uri in self._published:
                self._published[uri].refresh()
            else:
                self._published[uri] = MetadataTable.open(StorageRoot.of(uri))
        except (LakelogException, OSError):
            self._published.pop(uri, None)
            return
        found = self._published[uri]
        if found.version > self._seen_version:
            self._seen_version, self._seen = found.version, dict(found.partitions)

    def _tell(self, what: str, text: str) -> None:
        self._world.trace.append(f"{self._world.clock.now:.1f} {text}")
        self._world.faults.count(what)


def _begun(actor: StoreUser) -> Sequence[object]:
    return list(getattr(actor, "begun", ()))


class _Waiting(threading.Condition):
    """A condition that is waited for while other processes run."""

    def __init__(self, wait: Callable[[Callable[[], bool], float], bool], lock: Any = None) -> None:
        super().__init__(lock)
        self._wait_in_world = wait

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        self.release()
        try:
            return self._wait_in_world(lambda: bool(predicate()), timeout or 0.0)
        finally:
            self.acquire()
