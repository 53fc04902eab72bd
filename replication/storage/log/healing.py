"""Reads the broken files of a log again from time to time, on a thread of its own. [OL-01]

If the store hangs, only this thread waits; heartbeats, high watermarks and producers go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from lakelog.replication.errors import LakelogException

logger = logging.getLogger(__name__)

HEAL_SECONDS = 10.0  # the interval at which a handle reads its broken files again


class Healing:
    """The checks of one handle, one at a time. `look` must not hold a lock while it reads."""

    def __init__(self, name: str, look: Callable[[], object]) -> None:
        self._name = name
        self._look = look
        self._counted_from: float | None = None
        self._is_under_way = False

    def begin_if_due(self) -> None:
        """Starts a check, unless one is running or `HEAL_SECONDS` have not passed since the last one began (at first:
        since the first call). Not for two threads at once."""
        now = time.monotonic()
        if self._counted_from is None:
            self._counted_from = now
        if not self._is_under_way and now - self._counted_from >= HEAL_SECONDS:
            thread = threading.Thread(target=self._run, name=f"healing of {self._name}", daemon=True)
            self._counted_from, self._is_under_way = now, True
            try:
                thread.start()
            except RuntimeError as error:  # there are too many threads: try again later
                self._is_under_way = False
                logger.warning("%s: cannot read broken files again: %s", self._name, error)

    def _run(self) -> None:
        try:
            self._look()
        except LakelogException as error:
            logger.warning("%s: cannot read broken files again: %s", self._name, error)
        finally:
            self._is_under_way = False
