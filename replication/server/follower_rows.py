"""What followers say of their replicas: each root is looked at by a thread of its own. [FE-03]

A root that hangs, as a network file system may, holds up its own thread: the duties of a leader go on with what the
others say, and with what its broker has said last as long as that is not old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import Replica

Rows: TypeAlias = Mapping[TopicIdPartition, Replica]

PATIENCE_SECONDS = 0.5  # how long a leader's duties wait for roots that have been that fast


class FollowerRows:
    """The rows of brokers, as `read` reads them. `look` is called by one thread.

    Rows that were read longer ago than `max_age`, in seconds, are none: what the broker does now is not known.
    `began_at`: by the clock, when the looks began that have brought what was answered last.
    """

    def __init__(self, read: Callable[[int], Rows], max_age: float, clock: Callable[[], float]) -> None:
        self._read = read
        self._max_age = max_age
        self._clock = clock
        self._followers: dict[int, _Follower] = {}
        self.began_at: dict[int, float] = {}

    def look(self, brokers: Iterable[int]) -> dict[int, Rows | LakelogException]:
        """The rows of each broker, or why there are none. A root that does not answer in time is not waited for again
        before it has answered in time once."""
        for broker in brokers:
            self._followers.setdefault(broker, _Follower(broker, self._read))
        followers = {broker: self._followers[broker] for broker in brokers}
        for follower in followers.values():
            follower.begin(self._clock())
        until = time.monotonic() + PATIENCE_SECONDS
        for follower in followers.values():
            if follower.is_prompt:
                follower.wait(until - time.monotonic())
        answers = {broker: follower.answer(self._clock(), self._max_age) for broker, follower in followers.items()}
        self.began_at = {broker: began_at for broker, (_, began_at) in answers.items()}
        return {broker: found for broker, (found, _) in answers.items()}


class _Follower:
    """One broker, and the look at its root that is under way or was the last."""

    def __init__(self, broker: int, read: Callable[[int], Rows]) -> None:
        self._broker = broker
        self._read = read
        self._found: tuple[Rows | LakelogException, float] = ({}, float("-inf"))
        self._began_at = 0.0
        self._ended = threading.Event()
        self._ended.set()
        self.is_prompt = True

    def begin(self, now: float) -> None:
        """Looks at the root, unless the last look has not come back yet."""
        if self._ended.is_set():
            self._began_at = now
            self._ended.clear()
            threading.Thread(target=self._look, name=f"rows-of-broker-{self._broker}", daemon=True).start()

    def _look(self) -> None:
        started, began_at = time.monotonic(), self._began_at
        try:
            found: Rows | LakelogException = self._read(self._broker)
        except LakelogException as error:
            found = error
        except Exception as error:  # what is wrong with one broker's rows must not keep a leader from the others'
            found = LakelogException(f"{type(error).__name__}: {error}")
        self._found = found, began_at
        self.is_prompt = time.monotonic() - started <= PATIENCE_SECONDS
        self._ended.set()

    def wait(self, seconds: float) -> None:
        """Returns when the look has come back, or after that time."""
        if not self._ended.wait(max(0.0, seconds)):
            self.is_prompt = False

    def answer(self, now: float, max_age: float) -> tuple[Rows | LakelogException, float]:
        """What was found last, unless it is old, and when that look began."""
        found, began_at = self._found
        if not self._ended.is_set() and now - self._began_at > max_age:
            return KafkaStorageException(f"its root has not answered for {now - self._began_at:.0f} s"), began_at
        return (found if now - began_at <= max_age else {}), began_at
