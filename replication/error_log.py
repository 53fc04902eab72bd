"""Logs the errors of work that is repeated: each once, then how often it came, ever more rarely, and its end."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable

from lakelog.replication.errors import InconsistentClusterRootException

_FIRST_SECONDS, _LONGEST_SECONDS = 10.0, 600.0  # between two lines on the same errors
_NUMBERS = re.compile(r"[0-9a-f]{8,}|\d+")  # versions and ids differ from one try to the next

_counting = threading.Lock()  # only for those who count
_counts: Counter[str] = Counter()


def error_counts() -> dict[str, int]:
    """How many errors each work of this process has met, by its name; 0 where there were none. It takes no lock."""
    return dict(_counts)


class ErrorLog:
    """For one thread that tries again after an error. A poll that fails would otherwise fill the log with equal lines.

    It does not log an InconsistentClusterRootException, which the guard of the root has logged for the whole process.
    """

    def __init__(self, logger: logging.Logger, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._name = name
        self._clock = clock
        with _counting:
            _counts[name] += 0
        self._said: dict[str, int] = {}  # how often each error came, by its text without numbers
        self._since, self._next_at, self._pause = 0.0, 0.0, _FIRST_SECONDS

    def failed(self, error: Exception) -> None:
        """Counts an error of a try. Logs it if it is a new one or the last line on it is old."""
        if isinstance(error, InconsistentClusterRootException):
            return
        with _counting:
            _counts[self._name] += 1
        now, text = self._clock(), _NUMBERS.sub("#", str(error))
        if not self._said:
            self._since, self._next_at, self._pause = now, now + _FIRST_SECONDS, _FIRST_SECONDS
        self._said[text] = self._said.get(text, 0) + 1
        if self._said[text] == 1:
            self._logger.warning("%s: %s", self._name, error)
        elif now >= self._next_at:
            self._pause = min(2 * self._pause, _LONGEST_SECONDS)
            self._next_at = now + self._pause
            times, seconds = sum(self._said.values()), now - self._since
            self._logger.warning("%s: %d errors in %.0f s, the last: %s", self._name, times, seconds, error)

    def worked(self) -> None:
        """Logs that a try has worked again, if more than one had failed."""
        times = sum(self._said.values())
        if times > 1:
            self._logger.warning(
                "%s: works again after %d errors in %.0f s", self._name, times, self._clock() - self._since
            )
        self._said.clear()
