"""The servers of a world: shipped brokers and controllers, run step by step."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from lakelog.replication.config import Config
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.errors import LakelogException, StaleBrokerEpochException
from lakelog.replication.server.broker_server import Broker, BrokerSession
from lakelog.replication.server.periodic_task import BrokerKilled
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.tables import cluster_copy
from lakelog.schemas import LOG
from lakelog.verification.simulation.stack.faulty_store import is_below
from lakelog.verification.simulation.stack.one_thread import InlineFetcher, OneRound, Standing
from lakelog.verification.simulation.stack.stack_producers import StackProducer

_BROKEN = "CorruptRecord", "torn", "found gap"  # words of errors that only an operator can mend
SESSIONS = {"broker.session.timeout.ms": "6000", "controller.session.timeout.ms": "6000"}  # as on a disk
_NEWEST = 0.6  # the probability that the newest process gets the step, if there are older ones


class StackBroker:
    """A broker with its current process. `beat_at`: the time of its last heartbeat. Older processes may still run until
    they notice that they are fenced."""

    keeps_records = True

    def __init__(self, number: int, cluster: str, root: StorageRoot, maintain: float, **properties: str) -> None:
        self.name = f"broker-{number}"
        self.number = number
        self.root = root
        self.outage: str | None = None
        self.accesses = 0
        self.frozen_until, self.moved_at = 0.0, 0.0
        self.may_die = lambda: False
        self.fetches_all = False
        self.beat_at = 0.0
        self._refused: str | None = None
        self.broker: Broker | None = None
        self._older: list[Broker] = []
        self.cluster, self._clusters = cluster, [cluster]
        self.cluster_roots = cluster  # also those that it gets later
        self._maintain = maintain
        self._config = Config.from_properties({**SESSIONS, "broker.id": str(number), **properties})

    @property
    def is_dead(self) -> bool:
        return self.broker is not None and self.broker.pause_point.is_killed

    @property
    def runs(self) -> bool:
        return self.broker is not None and not self.broker.pause_point.is_killed

    @property
    def begun(self) -> list[object]:
        """Its processes."""
        return [*self._begun()]

    @property
    def clusters(self) -> list[Cluster]:
        """The cluster as each of its processes sees it."""
        return [broker._cluster for broker in self._begun()]

    def _begun(self) -> list[Broker]:
        return [broker for broker in (self.broker, *self._older) if broker is not None]

    @property
    def epoch(self) -> int | None:
        """The broker epoch of the current process; None if it does not run or is not registered."""
        session = self.broker.session if self.broker is not None and self.runs else None
        return session.broker_epoch if session else None

    @property
    def is_known_to_live(self) -> bool:
        """Whether its last heartbeat is recent enough that the controller will not take it for dead soon."""
        return time.monotonic() - self.beat_at <= 3

    @property
    def cannot_be_read(self) -> bool:
        """Whether its root has damage that only an operator can mend."""
        error = self._refused
        if self.broker is not None and self.runs and self.broker.session is None:
            error = self.broker._registration.storage_error
        return error is not None and self.root.uri in error and any(word in error for word in _BROKEN)

    @property
    def log_has_gap(self) -> bool:
        """Whether its log can no longer be opened because of a gap. Its process may go on with an open handle."""
        try:
            ReplicaLog.open(self.root.child(LOG.name))
        except LakelogException as error:
            return "found gap" in str(error)
        return False

    def may_write(self, uri: str) -> bool:
        """It may write its own root and the cluster's, also that of before the cluster was recovered."""
        return is_below(uri, ",".join([self.root.uri, self.cluster_roots, *self._clusters]))

    def die(self) -> bool:
        if self.broker is None or not self.may_die():
            return False
        self.broker.pause_point.kill()
        return True

    def start(self) -> None:
        """Starts a new process. If it cannot start, it ends, and a later step starts another."""
        self.broker, self._refused = None, None
        try:
            made = self._made()
            self.broker, self.beat_at = made, time.monotonic()
            made.start()
            made.pause_point.watch(threading.current_thread())
        except (LakelogException, OSError) as error:
            self.broker, self._refused = None, f"{type(error).__name__}: {error}"
        except BrokerKilled:
            pass

    def _made(self) -> Broker:
        watch: Any = SimpleNamespace(wait=lambda _: None)
        no_spark: Any = None
        made: Any = Broker(no_spark, self.cluster, self.root.uri, self._config, watch)
        made._waiter, made._thread, made._heartbeat = OneRound(), Standing(), Standing()
        broker: Broker = made
        return broker

    def kill(self) -> None:
        """Ends all processes of the broker."""
        for broker in (self.broker, *self._older):
            if broker is not None:
                broker.pause_point.kill()
        self._older.clear()

    def start_another(self) -> None:
        """Starts a second process beside the current one, as an operator may who does not see that one."""
        if self.broker is not None:
            self._older.append(self.broker)
        self.start()

    def start_at(self, cluster: str) -> None:
        """Starts a new process on another cluster root than the next ones, as by mistake."""
        usual, self.cluster = self.cluster, cluster
        try:
            self.start()
        finally:
            self.cluster = usual

    def move(self, cluster: str) -> None:
        """Begins its next process on another cluster root. The current one goes on with the old root."""
        if self.broker is not None:
            self._older.append(self.broker)
        self.broker, self.cluster = None, cluster
        self._clusters.append(cluster)

    def end_older(self) -> None:
        """Ends all processes but the current one, and also that if it uses another cluster root than the next ones."""
        for broker in self._older:
            broker.pause_point.kill()
        self._older.clear()
        if self.broker is not None and self.broker._cluster.uri != self.cluster:
            self.broker.pause_point.kill()

    def step(self, rng: random.Random) -> None:
        """Does the work of its process's threads once. Sometimes an older process gets the step."""
        if not self._older or rng.random() < _NEWEST:
            self._step(rng)
            return
        newest, older = (self.broker, self.beat_at), self._older.pop(0)
        self.broker = older
        self._step(rng)
        if self.broker is older and not older.pause_point.is_killed:
            self._older.append(older)
        self.broker, self.beat_at = newest

    def _step(self, rng: random.Random) -> None:
        """A heartbeat if due, the round of its own thread, its fetchers, and sometimes log maintenance."""
        broker = self.broker
        if broker is None or broker.pause_point.is_killed:
            self.start()
            return
        try:
            self._beat(broker)
        except BrokerKilled:
            return
        except StaleBrokerEpochException:
            self.broker = None
            return
        except LakelogException:
            pass
        broker._run()
        if broker._failure is not None:
            self.broker = None
            return
        if broker.session is not None:
            self._work_beside(broker.session, rng)

    def _beat(self, broker: Broker) -> None:
        """Sends a heartbeat when it is due."""
        if time.monotonic() >= self.beat_at + broker._config.broker_heartbeat_interval_ms / 1000:
            broker._beat()
            self.beat_at = time.monotonic()

    def _work_beside(self, session: BrokerSession, rng: random.Random) -> None:
        """Runs a step of each other thread. An error ends only that step."""
        for fetcher in session.fetcher_manager.fetchers().values():
            with suppress(LakelogException, BrokerKilled):
                if isinstance(fetcher, InlineFetcher):
                    fetcher.step(self.fetches_all)
        if self._maintains_now(rng):
            with suppress(BrokerKilled, StaleBrokerEpochException):
                session.maintenance.run_once()

    def _maintains_now(self, rng: random.Random) -> bool:
        return rng.random() < self._maintain


class StackController:
    """A controller with its current process. A step starts a new process if there is none."""

    keeps_records = False

    def __init__(self, name: str, cluster: str) -> None:
        self.name = name
        self.outage: str | None = None
        self.accesses = 0
        self.frozen_until = 0.0
        self.is_dead = False
        self.cluster = self.cluster_roots = cluster
        self._process: Controller | None = None

    def may_write(self, uri: str) -> bool:
        """It may write the cluster's tables, and their copies in the brokers' roots."""
        return is_below(uri, self.cluster_roots) or f"/{cluster_copy.FOLDER}/" in uri

    @property
    def begun(self) -> list[object]:
        """Its process, if it has one."""
        return [] if self._process is None else [self._process]

    @property
    def clusters(self) -> list[Cluster]:
        """The cluster as its process sees it."""
        return [] if self._process is None else [self._process._cluster]

    def die(self) -> bool:
        self.is_dead = True
        return True

    def kill(self) -> None:
        """Ends its process at once."""
        self.die()

    def step(self, _rng: random.Random) -> None:
        if self.is_dead or self._process is None:
            self.is_dead, self._process = False, None
            try:
                cluster = Cluster.open(self.cluster, Config.from_properties(SESSIONS))
                self._process = Controller(cluster, self.name)
            except (LakelogException, BrokerKilled):
                return
        with suppress(BrokerKilled):
            self._process.round()


Process = StackBroker | StackController | StackProducer
