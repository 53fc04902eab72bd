"""A micro-batch that stays open for a while: the follower fetches new segments in it without another one. [FT-05]

A micro-batch costs Spark more than a small fetch costs everything else. So it waits for news before it ends, as Kafka's
leader waits for records before it answers a fetch request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_SECONDS = 2.0


class OpenMicroBatch:
    """The micro-batches of one fetcher, one after the other. A thread beside the query tells the open one of news.

    A micro-batch waits for them up to `wait_max` seconds after each round (`replica.fetch.wait.max.ms`). It begins no
    round for news that come after `longest` seconds: they are for the next one.
    """

    def __init__(self, wait_max: float, longest: float = _SECONDS) -> None:
        self._wait_max, self._longest = wait_max, longest
        self._condition = threading.Condition()
        self._open: object = None  # the micro-batch that is open
        self._is_told = self._is_over = False

    def tell(self) -> bool:
        """There are new segments. Returns whether a micro-batch is open, and will fetch them."""
        with self._condition:
            self._is_told = self._open is not None
            self._condition.notify_all()
            return self._is_told

    def end(self) -> None:
        """Ends the wait of the micro-batch that is open, and of all later ones."""
        with self._condition:
            self._is_over = True
            self._condition.notify_all()

    def run(self, first: Callable[[], bool], more: Callable[[], bool]) -> bool:
        """Runs one micro-batch: the round `first`, and the round `more` each time that it is told of news. Returns what
        the last round returned: whether more can be fetched at once, which ends the wait. Raises what a round raises.
        """
        own, ends_at = object(), time.monotonic() + self._longest
        with self._condition:  # a micro-batch of a query that was stopped may still be under way
            self._open, self._is_told = own, False
        try:
            again = first()
            while self._goes_on(own, ends_at if not again else 0.0):
                again = more()
            return again
        finally:
            with self._condition:
                self._close(own)

    def _goes_on(self, own: object, ends_at: float) -> bool:
        with self._condition:
            left = max(0.0, min(self._wait_max, ends_at - time.monotonic()))
            self._condition.wait_for(lambda: self._is_told or self._is_over or self._open is not own, left)
            is_told = self._open is own and self._is_told
            if is_told:
                self._is_told = False
            if not is_told or time.monotonic() >= ends_at:
                self._close(own)
            return is_told

    def _close(self, own: object) -> None:
        if self._open is own:
            self._open, self._is_told = None, False
