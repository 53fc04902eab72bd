"""The pause point, through which every step of a broker passes, and the tasks that a broker repeats on threads of their
own, such as its heartbeat and its log maintenance."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import LakelogException, StaleBrokerEpochException
from lakelog.replication.storage.delta.commit_listeners import until_poll

logger = logging.getLogger(__name__)


class BrokerKilled(Exception):
    """The broker has been killed: the thread that carries out its steps stops here."""


class PausePoint:
    """Every step of a broker passes through it. It serves brokers that share a process; others get signals.

    It also notes when one watched thread last passed, so that others can check whether the thread hangs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._watched: threading.Thread | None = None
        self._passed_at = clock()
        self._open = threading.Event()
        self._open.set()
        self._killed = False

    def pass_through(self) -> None:
        """Waits while the broker is paused. Raises BrokerKilled once it has been killed."""
        self._open.wait()
        if self._killed:
            raise BrokerKilled
        if threading.current_thread() is self._watched:
            self._passed_at = self._clock()

    def watch(self, thread: threading.Thread) -> None:
        """Watches this thread from now on; see `seconds_since_passed`."""
        self._watched, self._passed_at = thread, self._clock()

    def seconds_since_passed(self) -> float:
        """Seconds since the watched thread last passed, or since `watch` if it has not passed yet."""
        return self._clock() - self._passed_at

    @property
    def is_killed(self) -> bool:
        """Whether the broker has been killed."""
        return self._killed

    @property
    def is_paused(self) -> bool:
        """Whether the broker is frozen."""
        return not self._open.is_set()

    def pause(self) -> None:
        """Freezes the broker at its next step."""
        self._open.clear()

    def resume(self) -> None:
        """Lets the broker go on."""
        self._open.set()

    def kill(self) -> None:
        """Ends the broker at its next step, also while it is frozen."""
        self._killed = True
        self._open.set()


class WhileMoving:
    """Does its work only if the thread that `pause_point` watches has passed within the last `seconds`.

    The heartbeat uses it. If the broker's own thread hangs in a call of its store, the broker cannot lead, so it must
    appear dead and let others take over. Kafka: `BrokerHeartbeatManager`. [BC-01]
    """

    def __init__(self, name: str, pause_point: PausePoint, seconds: float, work: Callable[[], object]) -> None:
        self._name = name
        self._pause_point = pause_point
        self._seconds = seconds
        self._work = work
        self._has_said = False

    def __call__(self) -> None:
        """Does the work, unless the watched thread hangs."""
        since = self._pause_point.seconds_since_passed()
        hangs = since > self._seconds
        if hangs and not self._has_said:
            logger.error("%s: its own thread has not moved for %.0f s: no heartbeats until it does", self._name, since)
        self._has_said = hangs
        if not hangs:
            self._work()


class PeriodicTask(threading.Thread):
    """Calls `work` every `interval_ms`, and when woken, until it is stopped, fenced or killed. It logs other errors and
    goes on. With `is_poll`, the calls are rarer while no commit is seen, see `until_poll`.

    Heartbeats have such a thread, so that a broker that takes up many roles does not look dead. So has work that must
    not hold up the broker. `stopping` is set by `stop`: long work checks it between its parts. Kafka:
    `BrokerLifecycleManager`, `KafkaScheduler`, `ShutdownableThread`. [BC-01]
    """

    def __init__(
        self, name: str, what: str, interval_ms: int, pause_point: PausePoint, work: Callable[[], object],
        is_poll: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(name=f"{name}-{what}", daemon=True)
        self._who = name
        self._what = what
        self._interval_ms, self._is_poll = interval_ms, is_poll
        self._pause_point = pause_point
        self._work = work
        self.stopping, self._woken = threading.Event(), threading.Event()

    def wake(self) -> None:
        """Calls `work` at once, or once more if a call is under way."""
        self._woken.set()

    def stop(self) -> None:
        """Ends the thread after the current call of `work`, and waits for it."""
        self.stopping.set()
        self.wake()
        if self.ident is not None:
            self.join()

    def _waits(self) -> bool:
        """Waits until the next call of `work` is due; False if the thread was stopped."""
        self._woken.wait(until_poll(self._interval_ms) if self._is_poll else self._interval_ms / 1000)
        self._woken.clear()
        return not self.stopping.is_set()

    def run(self) -> None:
        """The thread's loop."""
        errors = ErrorLog(logger, f"{self._who}: {self._what}")
        while self._waits():
            try:
                self._pause_point.pass_through()
                self._work()
                errors.worked()
            except (BrokerKilled, StaleBrokerEpochException):
                return  # the broker's own thread finds out by itself
            except LakelogException as error:
                errors.failed(error)
            except Exception:  # for example a Spark worker that did not start: the next round tries again
                logger.exception("%s: %s: unexpected error", self._who, self._what)
