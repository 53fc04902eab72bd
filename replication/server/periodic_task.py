"""What a broker does round after round on threads of its own: it shows that it lives, it looks after its log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from lakelog.replication.errors import LakelogException, StaleBrokerEpochException
from lakelog.replication.server.pause_point import BrokerKilled, PausePoint

logger = logging.getLogger(__name__)


class WhileMoving:
    """Work that is done only while the thread moves that a pause point watches.

    A heartbeat is: a broker whose own thread hangs in a call of its store leads nobody, and others are to take over.
    """

    def __init__(self, name: str, pause_point: PausePoint, seconds: float, work: Callable[[], object]) -> None:
        self._name = name
        self._pause_point = pause_point
        self._seconds = seconds
        self._work = work
        self._has_said = False

    def __call__(self) -> None:
        """Does the work, unless the thread was last seen longer ago than it may be."""
        since = self._pause_point.seconds_since_passed()
        hangs = since > self._seconds
        if hangs and not self._has_said:
            logger.error("%s: its own thread has not moved for %.0f s: it shows no life until then", self._name, since)
        self._has_said = hangs
        if not hangs:
            self._work()


class PeriodicTask:
    """Calls `work` again and again until it is stopped, fenced or killed; an error that may pass does not end it.

    For heartbeats, as taking up many roles must not look like death, and for what must not hold up anything else.
    Kafka: `BrokerLifecycleManager`, `KafkaScheduler`, `ShutdownableThread`. [BC-01]
    """

    def __init__(
        self, name: str, what: str, interval_ms: int, pause_point: PausePoint, work: Callable[[], object]
    ) -> None:
        self._name = name
        self._what = what
        self._interval = interval_ms / 1000
        self._pause_point = pause_point
        self._work = work
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-{what}", daemon=True)

    @property
    def is_stopping(self) -> bool:
        """Whether it has been told to end: work that is long looks at it."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it, after the round that is under way."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            try:
                self._pause_point.pass_through()
                self._work()
            except (BrokerKilled, StaleBrokerEpochException):
                return  # the broker's own thread finds it out by itself
            except LakelogException as error:
                logger.warning("%s: %s: %s", self._name, self._what, error)
            except Exception:  # such as a worker of Spark that did not start: the next round tries again
                logger.exception("%s: %s: an error of its own", self._name, self._what)
