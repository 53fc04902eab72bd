"""Reads the replica rows of followers, each root on a thread of its own. [FE-03]

A root that hangs, as a network file system may, holds up only its own thread. The leader goes on with the rows of the
other brokers, and with the last rows of this broker until they are too old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica_status import ReplicaStatus
from lakelog.replication.storage.in_threads import start_thread

Rows: TypeAlias = Mapping[TopicIdPartition, ReplicaStatus]

_NOW = float("inf")
PATIENCE_SECONDS = 0.5  # how long a leader round waits for roots that were this fast the last time


class FollowerStatusReader:
    """The rows of brokers, read with `read`. Only one thread calls `poll`.

    `polled_at` is the monotonic time at which the poll began that a broker's rows have come from.

    Rows older than `max_age` seconds do not count, because their broker may have gone on since. `began_at` is the
    time of `clock`, in seconds, at which the read of each broker's last returned rows began.

    `when_late` is called, by another thread, after the end of a read for which a poll did not wait. What woke the
    leader during that read may not be in its rows, and nothing wakes it again.
    """

    def __init__(
        self, read: Callable[[int], Rows], max_age: float, clock: Callable[[], float],
        polled_at: Callable[[int], float] = lambda _: _NOW, when_late: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self._read = read
        self._polled_at = polled_at
        self._when_late = when_late
        self._max_age = max_age
        self._clock = clock
        self._followers: dict[int, _Follower] = {}
        self.began_at: dict[int, float] = {}

    def poll(self, brokers: Iterable[int]) -> dict[int, Rows | LakelogException]:
        """Reads the rows of brokers; returns those of each broker, or its error. It waits at most `PATIENCE_SECONDS`. A
        root that was slower is not waited for again until it has been fast once."""
        for broker in brokers:
            self._followers.setdefault(broker, _Follower(broker, self._read, self._polled_at, self._when_late))
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
    """One broker, and the current or last read of its root."""

    def __init__(
        self, broker: int, read: Callable[[int], Rows], polled_at: Callable[[int], float],
        when_late: Callable[[], object],
    ) -> None:  # fmt: skip
        self._broker = broker
        self._read = read
        self._polled_at = polled_at
        self._when_late = when_late
        self._found: tuple[Rows | LakelogException, float] = ({}, float("-inf"))
        self._began_at = 0.0
        self._ended = threading.Event()
        self._ended.set()
        self._lock = threading.Lock()
        self._is_late = False  # an answer was given before the end of the read that is under way
        self.is_prompt = True

    def begin(self, now: float) -> None:
        """Begins to read the root, unless the last read is still under way."""
        if self._ended.is_set():
            self._began_at = now
            self._ended.clear()
            try:
                start_thread(self._poll, f"rows-of-broker-{self._broker}")
            except RuntimeError:  # the process has too many threads; the next poll tries again
                self._ended.set()
                raise

    def _poll(self) -> None:
        started, began_at = time.monotonic(), self._began_at
        try:
            found: Rows | LakelogException = self._read(self._broker)
            began_at -= max(0.0, started - self._polled_at(self._broker))
        except LakelogException as error:
            found = error
        except Exception as error:  # a fault in one broker's rows must not keep the leader from the others' rows
            found = LakelogException(f"{type(error).__name__}: {error}")
        self.is_prompt = time.monotonic() - started <= PATIENCE_SECONDS
        with self._lock:
            self._found = found, began_at
            self._ended.set()
            is_late, self._is_late = self._is_late, False
        if is_late:
            self._when_late()

    def wait(self, seconds: float) -> None:
        """Returns when the read has ended, or after `seconds`."""
        if not self._ended.wait(max(0.0, seconds)):
            self.is_prompt = False

    def answer(self, now: float, max_age: float) -> tuple[Rows | LakelogException, float]:
        """The last rows or error, or no rows if that is too old; and when that read began."""
        with self._lock:
            found, began_at = self._found
            self._is_late = not self._ended.is_set()
        if not self._ended.is_set() and now - self._began_at > max_age:
            return KafkaStorageException(f"its root has not answered for {now - self._began_at:.0f} s"), began_at
        return (found if now - began_at <= max_age else {}), began_at
