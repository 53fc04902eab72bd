"""Tells when a leader's rows in `replicas` call for a round of a follower. [FT-05, HW-02]"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import LEADER_ROLE, Replica

LeaderRows: TypeAlias = Mapping[TopicIdPartition, Replica]

_NEVER = float("inf")


class LeaderRowWatch:
    """Compares a leader's rows with those that the last round has read.

    A follower acts at once on a new role, state, epoch, lineage or log start. A new high watermark alone waits up to
    `wait_max` seconds for records, as Kafka's fetch response does. A new log end offset is no news: the stream tells
    of the records.
    """

    def __init__(self, wait_max: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait_max = wait_max
        self._clock = clock
        self._read: LeaderRows = {}
        self._compared: LeaderRows = self._read
        self._due_at = _NEVER

    def was_read(self, rows: LeaderRows) -> None:
        """A round has read these rows."""
        self._read = self._compared = rows
        self._due_at = _NEVER

    def has_news(self, rows: LeaderRows, followed: Collection[TopicIdPartition]) -> bool:
        """Whether a round is due for these rows, of which the partitions in `followed` count."""
        if rows is not self._compared:  # a poll without new rows costs nothing, however many there are
            self._compared = rows
            self._due_at = min(self._due_at, self._clock() + self._wait(rows, followed))
        return self._clock() >= self._due_at

    def _wait(self, rows: LeaderRows, followed: Collection[TopicIdPartition]) -> float:
        pairs = [(_led(self._read, partition), _led(rows, partition)) for partition in followed]
        if any(_urgent(before) != _urgent(now) for before, now in pairs):
            return 0.0
        is_raised = any(before and now and before.high_watermark != now.high_watermark for before, now in pairs)
        return self._wait_max if is_raised else _NEVER


def _led(rows: LeaderRows, partition: TopicIdPartition) -> Replica | None:
    """The row of a partition that the broker leads. Its rows as a follower concern nobody here."""
    row = rows.get(partition)
    return row if row is not None and row.role == LEADER_ROLE else None


def _urgent(row: Replica | None) -> tuple[object, ...] | None:
    return None if row is None else (row.state, row.leader_epoch, row.log_start_offset, row.epochs)
