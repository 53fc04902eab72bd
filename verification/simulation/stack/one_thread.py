"""Runs shipped code in one thread: replaces its threads, pools and clocks, so that a seed determines every step."""

from __future__ import annotations

import inspect
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from lakelog.replication.clients.sender import Sender
from lakelog.replication.protocol.append_plan import plan_appends
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.server import broker_server, log_maintenance
from lakelog.replication.server.fetcher.fetch_runner import FetchRunner
from lakelog.replication.server.fetcher.follower_query import StreamPlan, batch_key
from lakelog.replication.server.fetcher.replica_fetcher import ReplicaFetcher
from lakelog.replication.storage.delta.commit_listeners import CommitWaiter

PACKAGE = "lakelog.replication."
_EPOCH = 1_800_000_000.0  # the wall time at second 0 of a world's clock
_LOGS_ERRORS = (
    "server.broker_server", "server.fetcher.replica_fetcher", "server.log_maintenance", "controller.controller_server",
    "controller.term", "storage.root_worker",
)  # fmt: skip
_NO_BOUNDS = {"response_max_bytes": sys.maxsize, "partition_max_bytes": sys.maxsize}
_MICRO_BATCH_EVERY = 3  # steps of a fetcher


class InlineFetcher(ReplicaFetcher):
    """A fetcher without Spark. A step of its broker is a micro-batch of one round, or a step of the loop between two
    of them."""

    is_fetching, _steps = False, 0

    def start(self) -> None:
        """Starts nothing: its broker's steps run its micro-batches and its loop."""
        self._loop.longest = 0.0  # no thread wakes one that stays open

    def shutdown(self, seconds: float | None = None) -> None:
        self.states.remove(self.states.all())

    def step(self, all_of_it: bool = False) -> None:
        """Runs a step. Every third one is a micro-batch, and the others run a round only if one is due. `all_of_it`: a
        micro-batch, without limits on bytes."""
        self._steps += 1
        if all_of_it or self._steps % _MICRO_BATCH_EVERY == 1:
            self.fetch_once(all_of_it)
        else:
            with self._fetching():
                self._step()

    def fetch_once(self, all_of_it: bool = False) -> None:
        """Runs one micro-batch, which begins with a round. `all_of_it`: without limits on bytes."""
        limits, behind = self._round._limits, cast(Any, self._follower_query.behind)
        self._round._limits = limits._replace(**_NO_BOUNDS) if all_of_it else limits
        try:
            with self._fetching():
                self._process(behind, 0)
        finally:
            self._round._limits = limits

    @contextmanager
    def _fetching(self) -> Iterator[None]:
        self.is_fetching = True
        try:
            yield
        finally:
            self.is_fetching = False


def plan_without_spark(runner: FetchRunner, behind: Any, _: bool) -> StreamPlan:
    """What Spark plans of these batches: `tests/frames/test_fetch_plan.py` holds its rule and `plan_appends` equal."""
    context, metadata, log = runner._context, runner._context.metadata(), runner._context.log.current()
    states = {
        p: state
        for p, state in runner._states.all().items()
        if state.shown_state == FollowerState.FETCHING
        and (found := metadata.get(p)) is not None
        and (found.leader, found.leader_epoch) == (context.leader, state.leader_epoch)
        and context.broker_id in found.replicas
    }
    plan = plan_appends(behind, {p: log.known(p).log_end for p in states})
    stopped = plan.gaps | plan.diverged
    chosen = {*plan.batches, *(batch for batch in behind if batch.topic_id_partition in stopped)}
    left_out = {batch.topic_id_partition for batch in behind} - states.keys()
    return StreamPlan(frozenset(map(batch_key, chosen)), frozenset(left_out))


class AtOnce:
    """Replaces a thread: `start` does all its work."""

    def __init__(self, target: Callable[..., object], args: tuple[object, ...] = (), **_: object) -> None:
        self._work = lambda: target(*args)

    def start(self) -> None:
        self._work()

    def join(self) -> None:
        """Has nothing to wait for."""


class NoPause:
    """Replaces an event: waiting for it takes no time."""

    def wait(self, _seconds: float) -> bool:
        return False


class OneRound(CommitWaiter):
    """Replaces what a loop waits for between its rounds, so that the loop runs once."""

    def __init__(self) -> None:
        super().__init__()
        self._is_in_round = False

    def wait(self, _milliseconds: float) -> bool:
        self._is_in_round = not self._is_in_round
        return self._is_in_round


class Standing:
    """Replaces a thread that never runs and counts as alive."""

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return True


class Clock:
    """The time of a world, in seconds: call it for the monotonic time. `skew` returns the error of the wall clock of
    the process that runs now."""

    def __init__(self) -> None:
        self.now = 100.0
        self.skew: Callable[[], float] = lambda: 0.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        """The true wall time, which the store uses: seconds since the epoch."""
        return _EPOCH + self.now

    def seen(self) -> float:
        """The wall time that the running process sees, with its error: seconds since the epoch."""
        return self.wall() + self.skew()


class Changes(ExitStack):
    """Patches code until the block ends."""

    def change(self, where: object, name: str, what: object) -> None:
        """Replaces an attribute of a class or a module. `where` may be a module's name below `lakelog.replication`."""
        target = import_module(PACKAGE + where) if isinstance(where, str) else where
        self.enter_context(patch.object(target, name, what))

    def change_at(self, path: str, what: object) -> None:
        """Replaces the object at a dotted path below `lakelog.replication`: module, perhaps a class, name."""
        self.enter_context(patch(PACKAGE + path, what))


def _raises(*_: object) -> None:
    """Replaces `logger.exception`: raises an unexpected error again, so that the history fails."""
    raise


def in_one_thread(changes: Changes, clock: Clock, rng: random.Random) -> None:
    """From now on only `clock` moves time, `rng` gives all ids, and no thread runs beside a step."""
    _hold_clocks(changes, clock)
    changes.change(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4))
    changes.change("storage.tables.producer_table", "secrets", SimpleNamespace(randbits=rng.getrandbits))
    inline = SimpleNamespace(
        Thread=AtOnce, Event=threading.Event, Lock=threading.Lock, Condition=threading.Condition,
        current_thread=threading.current_thread,
    )  # fmt: skip
    changes.change("storage.in_threads", "_LINGER_SECONDS", 0.0)
    for place in (
        "server.follower_rows", "storage.log.broken_segments", "storage.in_threads", "storage.root_worker",
        "storage.delta.known_roots", "storage.delta.root_requests",
    ):  # fmt: skip
        changes.change(place, "threading", inline)
    changes.change("storage.delta.compare_and_set", "threading", SimpleNamespace(Event=NoPause))
    changes.change("storage.delta.cluster_quorum", "threading", SimpleNamespace(**{**vars(inline), "Event": NoPause}))
    changes.change(Sender, "start", lambda _: None)  # `flush` carries out what was sent before
    changes.change(broker_server, "follower_session", lambda spark: spark)
    changes.change(broker_server, "pass_while_spark_runs", lambda _spark, _id, pause_point: pause_point.pass_through())
    changes.change(broker_server, "ReplicaFetcher", InlineFetcher)
    changes.change(FetchRunner, "plan", plan_without_spark)
    changes.change("server.fetcher.segment_copier", "has_executors", lambda _: False)
    changes.change(log_maintenance.LogMaintenance, "start", lambda _: None)
    for name in _LOGS_ERRORS:
        changes.change_at(f"{name}.logger.exception", _raises)


def _hold_clocks(changes: Changes, clock: Clock) -> None:
    """Replaces the real clocks, also where one is the default of a constructor's parameter."""
    real = {time.monotonic: clock, time.time: clock.seen, time.thread_time: lambda: 0.0}  # computing takes no time
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith(PACKAGE)]
    classes = {c for module in modules for _, c in inspect.getmembers(module, inspect.isclass)}
    for made in sorted(classes, key=repr):
        defaults = getattr(made.__init__, "__defaults__", None)
        if defaults and any(default in real for default in defaults if callable(default)):
            held = tuple(real.get(d, d) if callable(d) else d for d in defaults)
            changes.change(made.__init__, "__defaults__", held)
    changes.change(time, "monotonic", clock)
    changes.change(time, "time", clock.seen)
    changes.change(time, "time_ns", lambda: int(clock.seen() * 1e9))
