"""Work on one root in a thread of its own, so that a root that hangs holds up no other root, nor the caller."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from lakelog.replication.error_log import ErrorLog
from lakelog.replication.errors import LakelogException

LATE_SECONDS = 5.0  # how long a caller that waits gives a root

logger = logging.getLogger(__name__)


class RootWorker:
    """Does one piece of work at a time, in the order in which it was begun.

    It logs the errors as `name`, and calls `when_failed` after each: the root may be another one when it is back.
    """

    def __init__(self, name: str, when_failed: Callable[[], object] = lambda: None) -> None:
        self._name = name
        self._when_failed = when_failed
        self._changed = threading.Condition()
        self._waiting: dict[object, Callable[[], object]] = {}
        self._is_busy = False
        self._is_late = False
        self._errors = ErrorLog(logger, name)

    def begin(self, key: object, work: Callable[[], object]) -> None:
        """Begins `work` when all work before it has ended. It replaces work of the same key that still waits."""
        with self._changed:
            self._waiting.pop(key, None)
            self._waiting[key] = work
            if self._is_busy:
                return
            self._is_busy = True
            try:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            except RuntimeError as error:  # this process has too many threads, or ends
                self._is_busy = False
                self._waiting.clear()
                self._errors.failed(error)

    def drop(self) -> None:
        """Forgets the work that waits. Work that has begun goes on."""
        with self._changed:
            self._waiting.clear()

    def wait(self, deadline: float) -> bool:
        """Waits for all work until a monotonic time, unless the root is late. Returns False if it becomes late now.

        It is late until work succeeds within LATE_SECONDS, once work has failed or has not ended at the deadline."""
        with self._changed:
            left = max(0.0, deadline - time.monotonic())
            if self._is_late or self._changed.wait_for(lambda: not self._is_busy, left):
                return True
            self._is_late = True
            return False

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_busy = False
                    self._changed.notify_all()
                    return
                work = self._waiting.pop(next(iter(self._waiting)))
            began = time.monotonic()
            try:
                work()
                self._is_late = time.monotonic() - began >= LATE_SECONDS
                self._errors.worked()
            except (LakelogException, OSError) as error:
                self._is_late = True
                self._when_failed()
                self._errors.failed(error)
            except BaseException:  # an error of this code, or a panic of a library, must not end later work
                self._when_failed()
                logger.exception("%s: unexpected error", self._name)
