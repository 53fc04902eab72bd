"""The servers of a world: brokers and controllers as they are shipped."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from lakelog.replication.config import Config
from lakelog.replication.controller.controller import Controller
from lakelog.replication.errors import LakelogException, StaleBrokerEpochException
from lakelog.replication.server.broker import Broker
from lakelog.replication.server.broker_session import BrokerSession
from lakelog.replication.server.pause_point import BrokerKilled
from lakelog.replication.simulation.stack.one_thread import InlineFetcher, OneRound, Standing
from lakelog.replication.simulation.stack.producers import StackProducer
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.schemas import LOG

_BROKEN = "CorruptRecord", "torn", "found gap"  # what only an operator mends
_NEWEST = 0.6  # how often the newest process goes on, where there are older ones


class StackBroker:
    """A broker, whatever process of it runs now. `beat_at`: when it has shown last that it lives. There may be older
    processes of it that have not found out yet that they are over."""

    keeps_records = True

    def __init__(self, number: int, cluster: str, root: StorageRoot, maintain: float, **properties: str) -> None:
        self.name = f"broker-{number}"
        self.number = number
        self.root = root
        self.outage: str | None = None
        self.looks = 0
        self.frozen_until, self.moved_at = 0.0, 0.0
        self.may_die = lambda: False
        self.fetches_all = False
        self.beat_at = 0.0
        self._refused: str | None = None
        self.broker: Broker | None = None
        self._older: list[Broker] = []
        self._cluster = cluster
        self._maintain = maintain
        self._config = Config.from_properties({"broker.id": str(number), **properties})

    @property
    def is_dead(self) -> bool:
        return self.broker is not None and self.broker.pause_point.is_killed

    @property
    def runs(self) -> bool:
        return self.broker is not None and not self.broker.pause_point.is_killed

    @property
    def epoch(self) -> int | None:
        """The broker epoch of the process that works, None if none does."""
        session = self.broker.session if self.broker is not None and self.runs else None
        return session.broker_epoch if session else None

    @property
    def is_known_to_live(self) -> bool:
        """Whether it has shown of late that it lives, and has time left to do so again."""
        return time.monotonic() - self.beat_at <= 3

    @property
    def cannot_be_read(self) -> bool:
        """Whether its root holds what only an operator can mend."""
        error = self._refused
        if self.broker is not None and self.runs and self.broker.session is None:
            error = self.broker._registration.storage_error
        return error is not None and self.root.uri in error and any(word in error for word in _BROKEN)

    @property
    def log_has_gap(self) -> bool:
        """Whether nobody can open its log any more, though its own process may go on with the handle that it has."""
        try:
            ReplicaLog.open(self.root.child(LOG.name))
        except LakelogException as error:
            return "found gap" in str(error)
        return False

    def may_write(self, uri: str) -> bool:
        """Its own root, and the cluster's."""
        return uri.startswith((f"{self.root.uri}/", f"{self._cluster}/"))

    def die(self) -> bool:
        if self.broker is None or not self.may_die():
            return False
        self.broker.pause_point.kill()
        return True

    def start(self) -> None:
        """A new process. One that cannot start ends, and is started again later."""
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
        made: Any = Broker(no_spark, self._cluster, self.root.uri, self._config, watch)
        made._stopping, made._thread, made._heartbeat = OneRound(), Standing(), Standing()
        broker: Broker = made
        return broker

    def kill(self) -> None:
        """Ends all its processes."""
        for broker in (self.broker, *self._older):
            if broker is not None:
                broker.pause_point.kill()
        self._older.clear()

    def start_another(self) -> None:
        """A new process, beside the one that runs, as an operator starts who cannot see that one."""
        if self.broker is not None:
            self._older.append(self.broker)
        self.start()

    def step(self, rng: random.Random) -> None:
        """What the threads of its process do; sometimes those of an older one."""
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
        """Heartbeat, its own round, fetches, now and then the maintenance of the log."""
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
        """When it is due: each process of the world reads each heartbeat."""
        if time.monotonic() >= self.beat_at + broker._config.broker_heartbeat_interval_ms / 1000:
            broker._beat()
            self.beat_at = time.monotonic()

    def _work_beside(self, session: BrokerSession, rng: random.Random) -> None:
        """The rounds of other threads; each goes on by itself whatever has become of the others."""
        for fetcher in session.fetcher_manager.fetchers().values():
            with suppress(LakelogException, BrokerKilled):
                if isinstance(fetcher, InlineFetcher):
                    fetcher.fetch_once(self.fetches_all)
        if self._maintains_now(rng):
            with suppress(BrokerKilled, StaleBrokerEpochException):
                session._maintenance.run_once()

    def _maintains_now(self, rng: random.Random) -> bool:
        return rng.random() < self._maintain


class StackController:
    """A controller, whatever process of it runs now."""

    keeps_records = False

    def __init__(self, name: str, cluster: str) -> None:
        self.name = name
        self.outage: str | None = None
        self.looks = 0
        self.frozen_until = 0.0
        self.is_dead = False
        self._cluster = cluster
        self._process: Controller | None = None

    def may_write(self, uri: str) -> bool:
        """Tables of the cluster."""
        return uri.startswith(f"{self._cluster}/")

    def die(self) -> bool:
        self.is_dead = True
        return True

    def step(self, _rng: random.Random) -> None:
        if self.is_dead or self._process is None:
            self.is_dead, self._process = False, None
            try:
                self._process = Controller(Cluster.open(self._cluster), self.name)
            except LakelogException:
                return
        with suppress(BrokerKilled):
            self._process.round()


Process = StackBroker | StackController | StackProducer
