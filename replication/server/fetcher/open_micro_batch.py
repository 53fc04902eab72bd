"""A micro-batch that stays open: the follower fetches new segments in it without another one. [FT-05]

A micro-batch costs Spark more than a small fetch costs everything else. So it stays open while there are no news, too,
as a Kafka fetch session does; the next one begins when its time is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_SECONDS = 30.0


class OpenMicroBatch:
    """The micro-batches of one fetcher, one after the other. A thread beside the query tells the open one of news.

    It begins no round for news that come after `longest` seconds: they are for the next micro-batch.
    """

    def __init__(self, longest: float = _SECONDS) -> None:
        self._longest = longest
        self._condition = threading.Condition()
        self._open: object = None  # the micro-batch that is open
        self._is_told = self._is_over = False

    def tell(self) -> bool:
        """There are new segments. Returns whether a micro-batch is open, and will fetch them."""
        with self._condition:
            self._is_told = self._open is not None
            self._condition.notify_all()
            return self._is_told

    @property
    def is_over(self) -> bool:
        """Whether the fetcher has ended: no micro-batch waits for news any more, and none may follow."""
        return self._is_over

    def end(self) -> None:
        """Ends the wait of the micro-batch that is open, and of all later ones."""
        with self._condition:
            self._is_over = True
            self._condition.notify_all()

    def run(self, first: Callable[[], bool], more: Callable[[], bool]) -> bool:
        """Runs one micro-batch: the round `first`, and the round `more` each time that it is told of news, or that the
        last round returned that more can be fetched at once. Returns what the last one returned. Raises what a round
        raises.
        """
        own, ends_at = object(), time.monotonic() + self._longest
        with self._condition:  # a micro-batch of a query that was stopped may still be under way
            self._open, self._is_told = own, False
            self._condition.notify_all()
        try:
            again = first()
            while self._goes_on(own, ends_at, again):
                again = more()
            return again
        finally:
            with self._condition:
                self._close(own)

    def _goes_on(self, own: object, ends_at: float, at_once: bool) -> bool:
        with self._condition:
            left = max(0.0, ends_at - time.monotonic())
            at_once = at_once and left > 0 and not self._is_over
            if not at_once:
                self._condition.wait_for(lambda: self._is_told or self._is_over or self._open is not own, left)
            goes_on = self._open is own and (at_once or self._is_told)
            if goes_on:
                self._is_told = False
            if not goes_on or time.monotonic() >= ends_at:
                self._close(own)
            return goes_on

    def _close(self, own: object) -> None:
        if self._open is own:
            self._open, self._is_told = None, False
