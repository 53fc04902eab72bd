"""The history of a cluster's metadata in memory: its commits, its events, and who led each partition when.

It is read on, version by version, so that a page costs what has happened since the last one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.protocol.partition_registration import LEADER_DURING_DELETE, NO_LEADER
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.readings.metadata_history import ClusterEvent, ClusterEvents
from lakelog.replication.storage.tables.metadata_table import REQUESTED_BY

_MOST_EVENTS = 20_000
_MOST_ROWS = 1_000_000  # changes of partitions in memory: some 100 MB
_MOST_TABLES = 64
_COLUMNS = [
    "topic", "topic_id", "partition", "leader", "leader_epoch", "isr", "replicas", "adding_replicas", "version",
    "committed_at", "is_removed",
]  # fmt: skip


class DatedVersion(NamedTuple):
    """A commit of the metadata: its time in seconds since the epoch, how many partitions it has changed, who made it
    or asked for it, and why. `partitions`, `offline` and `under_replicated`: the numbers of these after the commit."""

    version: int
    at: float
    changed: int
    who: str | None
    why: str | None
    partitions: int
    offline: int
    under_replicated: int


class PartitionChange(NamedTuple):
    """A partition from a time on, in seconds since the epoch. `leader`: None without one. `is_removed`: its topic was
    deleted."""

    at: float
    version: int
    topic_id: str
    partition: int
    leader: int | None
    leader_epoch: int
    isr: Sequence[int]
    replicas: Sequence[int]
    is_removed: bool


class TopicHistory:
    """The changes of a topic's partitions. Only those of the partitions that are asked for become objects: a topic may
    have many."""

    def __init__(self, rows: Sequence[pa.Table]) -> None:
        self._rows = [table for table in rows if table.num_rows]

    @property
    def partitions(self) -> list[int]:
        """The numbers of all partitions; empty if history does not have the topic."""
        return sorted({number for rows in self._rows for number in pc.unique(rows["partition"]).to_pylist()})

    @property
    def times(self) -> list[float]:
        """The times of all changes, in seconds since the epoch, oldest first."""
        return sorted({at.timestamp() for rows in self._rows for at in pc.unique(rows["committed_at"]).to_pylist()})

    def changes(self, numbers: Sequence[int]) -> list[PartitionChange]:
        """The changes of some partitions, oldest first."""
        wanted = pa.array(numbers, pa.int64())
        found = (rows.filter(pc.is_in(pc.cast(rows["partition"], pa.int64()), wanted)) for rows in self._rows)
        return [_change(row) for rows in found for row in rows.to_pylist()]


class SeenHistory:
    """The history as it was read last. Threads share it."""

    def __init__(
        self, versions: Sequence[DatedVersion], events: Sequence[ClusterEvent], rows: Sequence[pa.Table]
    ) -> None:  # fmt: skip
        self.versions, self.events, self._rows = versions, events, rows

    @property
    def begins_at(self) -> float | None:
        """The time of the oldest version that is known."""
        return self.versions[0].at if self.versions else None

    def topic(self, topic: str) -> TopicHistory:
        """The changes of a topic's partitions; also of a topic that was deleted."""
        return TopicHistory([rows.filter(pc.equal(rows["topic"], topic)) for rows in self._rows])

    def milliseconds_of(self, version: int) -> int:
        """The first millisecond since the epoch at which a version holds. An event may be older: see
        `ClusterEvent`; the state then is the one before."""
        place = bisect_left(self.versions, version, key=lambda each: each.version)
        return math.ceil(self.versions[min(place, len(self.versions) - 1)].at * 1000)

    def version_at(self, at: float) -> DatedVersion | None:
        """The newest version at a time; None if history does not reach back to it."""
        place = bisect_right(self.versions, at, key=lambda version: version.at)
        return self.versions[place - 1] if place else None


def around(times: Sequence[float], at: float) -> tuple[float | None, float | None]:
    """Of the times of changes, in order: that before the change which holds at a time, and the first one after it."""
    place = bisect_right(times, at)
    return times[place - 2] if place >= 2 else None, times[place] if place < len(times) else None


def _change(row: Mapping[str, Any]) -> PartitionChange:
    leader = row["leader"]
    return PartitionChange(
        row["committed_at"].timestamp(), row["version"], row["topic_id"], row["partition"],
        leader if leader >= 0 else None, row["leader_epoch"], row["isr"], row["replicas"],
        row["is_removed"] or leader == LEADER_DURING_DELETE,
    )  # fmt: skip


class MetadataTimeline:
    """Reads the history of one cluster on. It is not thread-safe."""

    def __init__(self, root: StorageRoot, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self._events = ClusterEvents(root)
        self._versions: list[DatedVersion] = []
        self._known = deque[ClusterEvent](maxlen=_MOST_EVENTS)
        self._rows: list[pa.Table] = []
        self._partitions: set[TopicIdPartition] = set()
        self._offline: set[TopicIdPartition] = set()
        self._short: set[TopicIdPartition] = set()
        self._seen: SeenHistory | None = None

    def read_on(self) -> SeenHistory:
        """The history up to the newest version. Raises KafkaStorageException."""
        if self._seen is not None and not self._events.history.is_behind():
            return self._seen
        for version, events in self._events.read_versions():
            self._known.extend(events)
            rows = [table.select(_COLUMNS) for table in version.changed]
            self._rows += rows
            for table in rows:
                self._count(table)
            info = version.commit.info
            self._versions.append(
                DatedVersion(
                    version.commit.version, version.committed_at, sum(table.num_rows for table in rows),
                    info.get(REQUESTED_BY) or info.get("controller") or info.get("who"), info.get("why"),
                    len(self._partitions), len(self._offline), len(self._short),
                )
            )  # fmt: skip
        if len(self._rows) > _MOST_TABLES:  # a page filters each
            self._rows = [pa.concat_tables(self._rows).combine_chunks()]
        self._forget()
        self._seen = SeenHistory(tuple(self._versions), tuple(self._known), tuple(self._rows))
        return self._seen

    def _count(self, rows: pa.Table) -> None:
        names = ("topic_id", "partition", "leader", "isr", "replicas", "adding_replicas", "is_removed")
        for topic_id, number, leader, isr, replicas, adding, is_removed in zip(
            *(rows[name].to_pylist() for name in names), strict=True
        ):
            key, is_gone = TopicIdPartition(topic_id, number), is_removed or leader == LEADER_DURING_DELETE
            is_short = bool(set(replicas) - set(adding) - set(isr))
            for those, is_in in (
                (self._partitions, not is_gone),
                (self._offline, not is_gone and leader == NO_LEADER),
                (self._short, not is_gone and leader != NO_LEADER and is_short),
            ):
                those.add(key) if is_in else those.discard(key)

    def _forget(self) -> None:
        """Drops the oldest versions if there are too many rows."""
        left, dropped = sum(version.changed for version in self._versions), 0
        while left > _MOST_ROWS and dropped + 1 < len(self._versions):
            left -= self._versions[dropped].changed
            dropped += 1
        if dropped:
            del self._versions[:dropped]
            kept = (rows.filter(pc.greater_equal(rows["version"], self._versions[0].version)) for rows in self._rows)
            self._rows = [rows for rows in kept if rows.num_rows]
