"""Operations that cannot complete yet. They are tried at once, after each change of what they watch, and at the
deadline.

Kafka: `DelayedOperation`, `DelayedOperationPurgatory`. There, the code that changes a partition wakes its operations.
Here the client polls the tables for changed partitions, and tries the operations that watch them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from lakelog.replication.clients.topic_view import pause
from lakelog.replication.errors import LakelogException, OffsetNotAvailableException

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


def until_available(
    attempt: Callable[[], Answer], deadline: float, poll_interval_ms: int,
    passing: tuple[type[LakelogException], ...] = (OffsetNotAvailableException,),
) -> Answer:  # fmt: skip
    """Repeats an attempt until a new leader knows its high watermark, and returns the result. KIP-207.

    There is at least one attempt. Raises OffsetNotAvailableException, or another error of `passing`, at the `deadline`
    (s, monotonic clock), and any other error of an attempt at once.
    """
    while True:
        try:
            return attempt()
        except passing:
            if time.monotonic() >= deadline:
                raise
        pause(poll_interval_ms, deadline)


class DelayedOperation(Generic[Key]):
    """An operation over some keys. It completes exactly once: by a successful attempt, or at its deadline. [DO-01]

    `attempt` returns whether it has answered. After the deadline (s, monotonic clock) it is called with True, and must
    answer.
    """

    def __init__(self, keys: Iterable[Key], deadline: float, attempt: Callable[[bool], bool]) -> None:
        self.keys = frozenset(keys)
        self.deadline = deadline
        self.is_completed = False
        self._attempt = attempt

    def try_complete(self, now: float) -> bool:
        """Attempts the operation unless it is completed. Returns whether it is completed now."""
        if not self.is_completed:
            is_over = now >= self.deadline
            self.is_completed = self._attempt(is_over) or is_over
        return self.is_completed


class Purgatory(Generic[Key]):
    """Holds delayed operations. For one thread only; the clock is in seconds and monotonic. [DO-01]"""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._watched: list[DelayedOperation[Key]] = []

    @property
    def watched(self) -> int:
        """The number of waiting operations."""
        return len(self._watched)

    def try_complete_else_watch(self, operation: DelayedOperation[Key]) -> bool:
        """Tries the operation, and keeps it if it does not complete.

        Kafka tries again after that, because a change in between would not wake the operation. A client that polls
        needs no second try: the next poll finds the change.
        """
        if operation.try_complete(self._clock()):
            return True
        self._watched.append(operation)
        return False

    def check_and_complete(self, moved: Iterable[Key]) -> None:
        """Tries the operations that watch one of these keys, and those past their deadline."""
        now, keys = self._clock(), frozenset(moved)
        for operation in self._watched:
            if operation.keys & keys or now >= operation.deadline:
                operation.try_complete(now)
        self._watched = [operation for operation in self._watched if not operation.is_completed]

    def wait(self, moved: Callable[[], Iterable[Key]], poll_interval_ms: int) -> None:
        """Returns when every operation is completed. Calls `moved` every `poll_interval_ms` ms for the changed keys."""
        while self._watched:
            pause(poll_interval_ms, min(operation.deadline for operation in self._watched))
            self.check_and_complete(moved())
