"""One thread for all: what the shipped code gives to threads, pools and clocks happens in order, by a held clock."""

from __future__ import annotations

import inspect
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from lakelog.replication.server import broker, broker_session, log_maintenance
from lakelog.replication.server.fetcher.replica_fetcher import ReplicaFetcher
from lakelog.replication.storage.delta.commit_reader import commit_name, last_version

PACKAGE = "lakelog.replication."
_EPOCH = 1_800_000_000.0  # wall time when the clock of a world stands at nothing
_LOGS_ERRORS = (
    "server.broker", "server.broker_session", "server.log_maintenance", "controller.controller", "controller.term",
)  # fmt: skip
_NO_BOUNDS = {"response_max_bytes": sys.maxsize, "partition_max_bytes": sys.maxsize}


class InlineFetcher(ReplicaFetcher):
    """A fetcher without a query: a round of it is fetched from the leader's snapshot."""

    is_fetching = False
    _seen: tuple[int, object] | None = None

    def start(self) -> None:
        """A step of its broker calls the rounds."""

    def wake(self) -> None:
        """There is no stream to be woken."""

    def shutdown(self, seconds: float | None = None) -> None:
        self._states.remove(self._states.all())

    def fetch_once(self, all_of_it: bool = False) -> None:
        """A round as of a query that has just begun, if the leader's log has moved: nothing of the stream is there, all
        is to be looked for. `all_of_it`: without limits."""
        source = self._round._source
        newest = last_version(source)
        seen = newest, source.stamps([commit_name(newest)])[0]
        if seen != self._seen:
            self._states.fell_behind(self._states.all())
            self._seen = seen
        limits = self._round._limits
        self._round._limits = limits._replace(**_NO_BOUNDS) if all_of_it else limits
        self.is_fetching = True
        try:
            self._fetch(None)
        finally:
            self.is_fetching = False
            self._round._limits = limits


class AtOnce:
    """A thread whose work is done when it has been started."""

    def __init__(self, target: Callable[..., object], args: tuple[object, ...] = (), **_: object) -> None:
        self._work = lambda: target(*args)

    def start(self) -> None:
        self._work()


class InOrder:
    """A pool of threads that does one thing after the other."""

    def __init__(self, _: int) -> None:
        pass

    def __enter__(self) -> InOrder:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return iter([work(item) for item in items])


class NoPause:
    """An event that nobody waits for."""

    def wait(self, _seconds: float) -> bool:
        return False


class OneRound:
    """Stands for the event that ends a loop: it lets the loop go round once."""

    def __init__(self) -> None:
        self._has_gone_round = True

    def wait(self, _seconds: float) -> bool:
        self._has_gone_round = not self._has_gone_round
        return self._has_gone_round

    def is_set(self) -> bool:
        return False


class Standing:
    """Stands for a thread that is never begun."""

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return True


class Clock:
    """The time of a world, in seconds: `monotonic` when it is called, and wall time. `skew` tells by how much the clock
    of who asks now is wrong."""

    def __init__(self) -> None:
        self.now = 100.0
        self.skew: Callable[[], float] = lambda: 0.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        """Seconds since the epoch, as the store has them."""
        return _EPOCH + self.now

    def told(self) -> float:
        """Seconds since the epoch, as a process is told."""
        return self.wall() + self.skew()


class Changes(ExitStack):
    """What has another value until the block ends."""

    def change(self, where: object, name: str, what: object) -> None:
        """An attribute of a module or a class; a module also by its name below `lakelog.replication`."""
        target = import_module(PACKAGE + where) if isinstance(where, str) else where
        self.enter_context(patch.object(target, name, what))

    def change_at(self, path: str, what: object) -> None:
        """Replaces what a dotted path below `lakelog.replication` names: module, perhaps a class, name."""
        self.enter_context(patch(PACKAGE + path, what))


def _raises(*_: object) -> None:
    """In the place of a log line about an error that nobody has expected: the world is to see it."""
    raise


def in_one_thread(changes: Changes, clock: Clock, rng: random.Random) -> None:
    """From now on time stands still but for the clock, ids come from the generator, and nothing runs beside a step."""
    _hold_clocks(changes, clock)
    changes.change(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4))
    changes.change("storage.tables.producer_table", "secrets", SimpleNamespace(randbits=rng.getrandbits))
    inline = SimpleNamespace(Thread=AtOnce, Event=threading.Event)
    for place in ("server.follower_rows", "storage.log.healing"):
        changes.change(place, "threading", inline)
    changes.change("storage.delta.compare_and_set", "threading", SimpleNamespace(Event=NoPause))
    for place in (
        "server.fetcher.segment_copier",
        "storage.log.broken_segments",
    ):
        changes.change(place, "ThreadPoolExecutor", InOrder)
    changes.change(broker, "follower_session", lambda spark: spark)
    changes.change(broker, "pass_while_spark_runs", lambda _spark, _id, pause_point: pause_point.pass_through())
    changes.change(broker_session, "ReplicaFetcher", InlineFetcher)
    changes.change(log_maintenance.LogMaintenance, "start", lambda _: None)
    for name in _LOGS_ERRORS:
        changes.change_at(f"{name}.logger.exception", _raises)


def _hold_clocks(changes: Changes, clock: Clock) -> None:
    """Also where the real clock is the default of a parameter."""
    real = {time.monotonic: clock, time.time: clock.told}
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith(PACKAGE)]
    classes = {c for module in modules for _, c in inspect.getmembers(module, inspect.isclass)}
    for made in sorted(classes, key=repr):
        defaults = getattr(made.__init__, "__defaults__", None)
        if defaults and any(default in real for default in defaults if callable(default)):
            held = tuple(real.get(d, d) if callable(d) else d for d in defaults)
            changes.change(made.__init__, "__defaults__", held)
    changes.change(time, "monotonic", clock)
    changes.change(time, "time", clock.told)
    changes.change(time, "time_ns", lambda: int(clock.told() * 1e9))
