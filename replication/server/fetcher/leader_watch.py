"""Tells when a round of a follower is due: when its leader's log has new segments, or when the leader's rows in
`replicas` call for one. [FT-05, HW-02]"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.replica import LEADER_ROLE, Replica
from lakelog.replication.storage.delta.newest_versions import LONGEST_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.new_segments import LogOffset, NewSegments

_FIRST_WAIT_SECONDS = 0.1
_FAR = 16  # commits without segments that count as news all the same: the follower reads each of them once more


class LeaderLogWatch:
    """Follows the commits of the log of broker `leader`, from the newest one at its first look on. Commits that the
    leader itself fetched are no news."""

    def __init__(self, log: StorageRoot, leader: int) -> None:
        self._log = log
        self._segments = NewSegments(log, leader)
        self._seen = self._told = LogOffset(-1)
        self._has_looked = False
        self._errors, self._look_at = 0, float("-inf")

    def has_news(self) -> bool:
        """Whether there are segments, or a gap, of which no call before has told; at its first look, too. In an object
        store the look may be one of this process, and the less happens, the older.

        The first of several errors is news, too: the fetch itself tells why the log cannot be read.
        """
        if time.monotonic() < self._look_at:
            return False
        try:
            found = self._look()
        except KafkaStorageException:
            self._errors += 1
            self._look_at = time.monotonic() + min(_FIRST_WAIT_SECONDS * 2 ** min(self._errors, 10), LONGEST_SECONDS)
            return self._errors == 1
        self._errors = 0
        if self._seen.log < 0 and not self._log.is_local:  # there is no log yet, which only a listing tells
            self._look_at = time.monotonic() + LONGEST_SECONDS
        return found

    def _look(self) -> bool:
        if not self._has_looked:
            self._seen = self._told = self._segments.newest()
            self._has_looked = True
            return True
        found, self._seen, _ = self._segments.read_some(self._seen, age=self._log.poll_age(LONGEST_SECONDS))
        if not found and self._seen.log < self._told.log + _FAR:
            return False
        self._told = self._seen
        return True


LeaderRows: TypeAlias = Mapping[TopicIdPartition, Replica]

_NEVER = float("inf")


class LeaderRowWatch:
    """Compares a leader's rows with those that the last round has read.

    A follower acts at once on a new role, state, epoch, lineage or log start. A new high watermark alone waits up to
    `wait_max` seconds for records, as Kafka's fetch response does. A new log end offset is no news: the
    leader's log tells of the records.
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
