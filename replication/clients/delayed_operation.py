"""Operations that cannot be answered yet: tried at once, again whenever what they watch has moved, and at the deadline.

Kafka: `DelayedOperation`, `DelayedOperationPurgatory`. There a request is parked, and whoever moves a partition wakes
it. Here nobody calls: the client looks which of its partitions have moved in the tables, and wakes what watches them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from lakelog.replication.clients.topic_view import pause
from lakelog.replication.errors import OffsetNotAvailableException

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


def until_available(look: Callable[[], Answer], deadline: float, poll_interval_ms: int) -> Answer:
    """What `look` answers once a new leader knows how much is committed, which it soon does. KIP-207.

    `deadline` is of the monotonic clock; one look is always made. Raises OffsetNotAvailableException at the deadline,
    and whatever else `look` raises at once.
    """
    while True:
        try:
            return look()
        except OffsetNotAvailableException:
            if time.monotonic() >= deadline:
                raise
        pause(poll_interval_ms, deadline)


class DelayedOperation(Generic[Key]):
    """An operation over some keys, completed exactly once: by an attempt that answers, or by its deadline. [DO-01]

    `attempt` is told whether the time is over, and tells whether it has answered; when the time is over it has to.
    """

    def __init__(self, keys: Iterable[Key], deadline: float, attempt: Callable[[bool], bool]) -> None:
        self.keys = frozenset(keys)
        self.deadline = deadline
        self.is_completed = False
        self._attempt = attempt

    def try_complete(self, now: float) -> bool:
        """Tells whether the operation is completed by now; attempts it if it was not before."""
        if not self.is_completed:
            is_over = now >= self.deadline
            self.is_completed = self._attempt(is_over) or is_over
        return self.is_completed


class Purgatory(Generic[Key]):
    """Where delayed operations wait. For one thread; the clock is in seconds and monotonic. [DO-01]"""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._watched: list[DelayedOperation[Key]] = []

    @property
    def watched(self) -> int:
        """How many operations wait."""
        return len(self._watched)

    def try_complete_else_watch(self, operation: DelayedOperation[Key]) -> bool:
        """Tries the operation and keeps it if that was too early.

        Kafka tries once more after that, lest a move in between wake nobody. Who polls needs no second try: what has
        moved since the first one is seen at the next poll.
        """
        if operation.try_complete(self._clock()):
            return True
        self._watched.append(operation)
        return False

    def check_and_complete(self, moved: Iterable[Key]) -> None:
        """Tries the operations that watch one of these keys, and those whose time is over."""
        now, keys = self._clock(), frozenset(moved)
        for operation in self._watched:
            if operation.keys & keys or now >= operation.deadline:
                operation.try_complete(now)
        self._watched = [operation for operation in self._watched if not operation.is_completed]

    def wait(self, moved: Callable[[], Iterable[Key]], poll_interval_ms: int) -> None:
        """Returns when every operation is completed. `moved` tells which keys have moved since it was last asked."""
        while self._watched:
            pause(poll_interval_ms, min(operation.deadline for operation in self._watched))
            self.check_and_complete(moved())
