"""Rereads the broken files of a log now and then, on a thread of its own. [OL-01]

A store that hangs holds up this thread, and neither heartbeats nor high watermarks nor producers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from lakelog.replication.errors import LakelogException

logger = logging.getLogger(__name__)

HEAL_SECONDS = 10.0  # how often a handle looks again at what it has found broken


class Healing:
    """The looks of one handle, one at a time. `look` is to read without a lock that others wait for."""

    def __init__(self, name: str, look: Callable[[], object]) -> None:
        self._name = name
        self._look = look
        self._counted_from: float | None = None
        self._is_under_way = False

    def begin_if_due(self) -> None:
        """Starts a look, unless one is under way or `HEAL_SECONDS` have not passed since the last one began (at first:
        since the first call). Called by one thread at a time."""
        now = time.monotonic()
        if self._counted_from is None:
            self._counted_from = now
        if not self._is_under_way and now - self._counted_from >= HEAL_SECONDS:
            thread = threading.Thread(target=self._run, name=f"healing of {self._name}", daemon=True)
            self._counted_from, self._is_under_way = now, True
            try:
                thread.start()
            except RuntimeError as error:  # there are too many: another time
                self._is_under_way = False
                logger.warning("%s: broken files could not be looked at again: %s", self._name, error)

    def _run(self) -> None:
        try:
            self._look()
        except LakelogException as error:
            logger.warning("%s: broken files could not be looked at again: %s", self._name, error)
        finally:
            self._is_under_way = False
