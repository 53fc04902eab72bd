"""Brokers and controllers that a scenario starts, freezes, stops and kills. They get steps while they run."""

from __future__ import annotations

import math
import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from lakelog.replication.config import Config
from lakelog.replication.controller.controller_server import Controller
from lakelog.replication.server.broker_server import Broker
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.simulation.stack.held_time import Passing, Schedule
from lakelog.verification.simulation.stack.one_thread import OneRound
from lakelog.verification.simulation.stack.stack_processes import StackBroker, StackController


class _Stopping:
    """Replaces the event that ends a broker: a wait for it lets time pass."""

    def __init__(self, schedule: Schedule) -> None:
        self._passing = Passing(schedule)
        self._is_set = False

    def wait(self, seconds: float) -> bool:
        return self._passing.wait(seconds) or self._is_set

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


class _Stepped:
    """Replaces a thread whose work is done in steps: start, join and stop do nothing."""

    def __init__(self, is_alive: Callable[[], bool]) -> None:
        self.is_alive = is_alive

    def start(self) -> None:
        pass

    def join(self, _seconds: float | None = None) -> None:
        pass

    def stop(self) -> None:
        pass


class _Signalled:
    """A process that can be frozen."""

    frozen_until: float

    @property
    def is_frozen(self) -> bool:
        return self.frozen_until > time.monotonic()

    def freeze(self) -> None:
        """Stops it as SIGSTOP does: it gets no steps, but time passes."""
        self.frozen_until = math.inf

    def thaw(self) -> None:
        """Lets it run again, as SIGCONT does."""
        self.frozen_until = 0.0


class BrokerServer(_Signalled, StackBroker):
    """A broker whose process runs from `start` until it is stopped, killed or fenced."""

    def __init__(
        self, number: int, cluster: str, root: StorageRoot, schedule: Schedule, properties: dict[str, str]
    ) -> None:
        super().__init__(number, cluster, root, 0, **properties)
        self._schedule = schedule
        self._maintained_at = 0.0

    def start(self) -> None:
        """Starts a process. It waits until its broker id is free, and is registered when this returns. Raises the error
        if it cannot start."""
        made = self._made()
        made.start()
        made.pause_point.watch(threading.current_thread())
        self.broker, self.frozen_until = made, 0.0
        self.beat_at = self._maintained_at = time.monotonic()

    def _made(self) -> Broker:
        no_spark: Any = None
        made: Any = Broker(no_spark, self.cluster, self.root.uri, self._config)
        made._waiter = OneRound()
        made._waiter.stopping = _Stopping(self._schedule)
        made._thread = made._heartbeat = _Stepped(lambda: self.broker is made)
        broker: Broker = made
        return broker

    def run(self, rng: random.Random) -> None:
        """Runs a step, unless it is frozen or down."""
        if self.runs and not self.is_frozen:
            self.step(rng)

    def _maintains_now(self, _: random.Random) -> bool:
        """Whether log maintenance is due."""
        is_due = time.monotonic() >= self._maintained_at + self._config.log_cleaner_backoff_ms / 1000
        if is_due:
            self._maintained_at = time.monotonic()
        return is_due

    def stop(self) -> None:
        """Stops it in order, as SIGTERM does, while its own thread goes on."""
        assert self.broker is not None
        try:
            self.broker.stop()
        finally:
            self.broker = None

    def kill(self) -> None:
        """Ends it at once, as SIGKILL does."""
        super().kill()
        self.broker = None


class ControllerServer(_Signalled, StackController):
    """A controller whose process runs from `start` until it is stopped or killed."""

    def __init__(self, name: str, cluster: str, config: Config) -> None:
        super().__init__(name, cluster)
        self._config = config

    @property
    def runs(self) -> bool:
        """Whether its process runs."""
        return self._process is not None

    def has_id(self, controller_id: str) -> bool:
        """Whether the running process has this id. Each process has its own."""
        return self._process is not None and self._process.controller_id == controller_id

    def start(self) -> None:
        """Starts a process, which stands for election."""
        made: Any = Controller(Cluster.open(self.cluster, self._config), f"{self.name}-{uuid.uuid4().hex}")
        made._thread = _Stepped(lambda: not made._waiter.stopping.is_set())
        made.start()
        self._process, self.frozen_until = made, 0.0

    def run(self, rng: random.Random) -> None:
        """Runs a round, unless it is frozen or down."""
        if self.runs and not self.is_frozen:
            self.step(rng)

    def stop(self) -> None:
        """Stops it in order: an active controller resigns."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def kill(self) -> None:
        """Ends it at once, as SIGKILL does: its lease is renewed no more."""
        self._process = None
