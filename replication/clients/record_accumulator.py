"""The sends of a producer that have not begun. Small sends to one topic share a commit.

Kafka: `RecordAccumulator`. [AP-06]
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

from lakelog.replication.clients.producer_config import ProducerConfig
from lakelog.replication.protocol.rounds.pipeline_round import Sending
from lakelog.replication.protocol.rounds.send_round import RecordMetadata

# A commit has the deadline of its first send. The others may have this number of seconds more, which they lose.
_SECONDS = 1.0


class WaitingSend(Protocol):
    """A send that has not begun.

    `shares_with`: sends of equal values may share a commit; None if it shares with none. `nbytes`: its bytes in memory.
    `deadline`: on the monotonic clock, in seconds. `may_expire`: whether it is not sent once its time is over.
    """

    future: Future[dict[int, RecordMetadata]]
    shares_with: object
    nbytes: int
    deadline: float
    may_expire: bool

    @property
    def partition_bytes(self) -> Mapping[int, int]:
        """The bytes of each partition, if it shares with others."""

    def fail(self, error: BaseException) -> None:
        """Ends it with an error. Nothing of it was sent."""

    def expire(self) -> None:
        """Ends it because its time is over. Nothing of it was sent."""

    def begin_with(self, others: list[WaitingSend]) -> Sending | None:
        """Begins it together with others; None if all futures were cancelled, or their time is over."""


class RecordAccumulator:
    """Keeps sends in their order. The first one is ready after `linger.ms`, or once a partition has `batch.size` bytes,
    or when somebody waits for it.

    `expires_at`: before this time of the monotonic clock, in seconds, no send expires.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self.expires_at = math.inf
        self._waiting: deque[tuple[WaitingSend, float]] = deque()
        self._sizes: Counter[tuple[object, int]] = Counter()
        self._urgent = 0  # so many from the front are ready

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, send: WaitingSend, is_awaited: bool) -> None:
        """Adds a send behind the others. If the caller waits for it, it is ready, and all before it."""
        self._waiting.append((send, time.monotonic() + self._config.linger_ms / 1000))
        self._count(send, 1)
        self._note_expiry(send)
        limit = self._config.batch_size
        shares = send.shares_with is not None and limit > 0
        is_full = any(self._sizes[send.shares_with, p] >= limit for p in send.partition_bytes) if shares else True
        if is_awaited or is_full:
            self.hurry()

    def _count(self, send: WaitingSend, sign: int) -> None:
        if send.shares_with is not None:
            for partition, size in send.partition_bytes.items():
                key = send.shares_with, partition
                self._sizes[key] += sign * size
                if not self._sizes[key]:  # time-outs differ, and each would stay for ever
                    del self._sizes[key]

    def _note_expiry(self, send: WaitingSend) -> None:
        if send.may_expire:
            self.expires_at = min(self.expires_at, send.deadline)

    def take_expired(self) -> list[WaitingSend]:
        """Removes the sends that may expire and whose time is over, and returns them."""
        now = time.monotonic()
        if now < self.expires_at:
            return []
        over = [n for n, (send, _) in enumerate(self._waiting) if send.may_expire and send.deadline <= now]
        sends = [self._remove(number) for number in reversed(over)]
        self.expires_at = math.inf
        for send, _ in self._waiting:
            self._note_expiry(send)
        return sends[::-1]

    def hurry(self) -> None:
        """All that wait are ready."""
        self._urgent = len(self._waiting)

    def seconds_left(self) -> float | None:
        """The seconds until the first send is ready, 0 if it is; None if none waits."""
        if not self._waiting:
            return None
        return 0.0 if self._urgent else max(0.0, self._waiting[0][1] - time.monotonic())

    def take(self) -> list[WaitingSend]:
        """Removes the first send and those behind it that share its commit; nothing if the first is not ready."""
        if self.seconds_left() != 0.0:
            return []
        group, sizes = [self._remove(0)], Counter[int]()
        if group[0].shares_with is not None:
            sizes.update(group[0].partition_bytes)
            while self._waiting and self._fits(self._waiting[0][0], group[0], sizes):
                group.append(self._remove(0))
                sizes.update(group[-1].partition_bytes)
        return group

    def _remove(self, number: int) -> WaitingSend:
        send, _ = self._waiting[number]
        del self._waiting[number]
        self._count(send, -1)
        self._urgent -= number < self._urgent
        return send

    def _fits(self, send: WaitingSend, first: WaitingSend, sizes: Mapping[int, int]) -> bool:
        limit = self._config.batch_size
        ends_then_too = send.deadline - first.deadline <= _SECONDS
        is_small = all(sizes.get(p, 0) + size <= limit for p, size in send.partition_bytes.items())
        return send.shares_with == first.shares_with and ends_then_too and is_small

    def clear(self) -> list[WaitingSend]:
        """Removes all sends, and returns them."""
        sends = [self._remove(0) for _ in range(len(self._waiting))]
        self._sizes.clear()
        return sends
