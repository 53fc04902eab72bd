"""The history of a cluster's metadata in memory: its commits, its events, and who led each partition when.

It is read on, version by version, so that a page costs what has happened since the last one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.readings.metadata_history import ClusterEvent, ClusterEvents
from lakelog.replication.storage.tables.metadata_table import REQUESTED_BY

_MOST_EVENTS = 20_000
_MOST_ROWS = 1_000_000  # changes of partitions in memory: some 100 MB
_MOST_TABLES = 64
_COLUMNS = [
    "topic", "topic_id", "partition", "leader", "leader_epoch", "isr", "replicas", "version", "committed_at",
    "is_first", "is_removed",
]  # fmt: skip


class DatedVersion(NamedTuple):
    """A commit of the metadata: its time in seconds since the epoch, how many partitions it has changed, who made it
    or asked for it, and why."""

    version: int
    at: float
    changed: int
    who: str | None
    why: str | None


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

    def around(self, at: float, topic: str | None = None) -> tuple[float | None, float | None]:
        """The times of the last change at or before a time but the one that holds then, and of the first one after it.
        `topic`: changes of this topic only."""
        if topic is None:
            times = [version.at for version in self.versions if version.changed]
        else:
            times = sorted({change.at for change in self.changes(topic)})
        place = bisect_right(times, at)
        return times[place - 2] if place >= 2 else None, times[place] if place < len(times) else None

    def changes(self, topic: str) -> list[PartitionChange]:
        """The changes of a topic's partitions, oldest first."""
        return [_change(row) for rows in self._rows for row in _of(rows, topic)]

    def version_at(self, at: float) -> DatedVersion | None:
        """The newest version at a time; None if history does not reach back to it."""
        place = bisect_right(self.versions, at, key=lambda version: version.at)
        return self.versions[place - 1] if place else None


def _of(rows: pa.Table, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.filter(pc.equal(rows["topic"], topic)).to_pylist()
    return found


def _change(row: dict[str, Any]) -> PartitionChange:
    leader = row["leader"]
    return PartitionChange(
        row["committed_at"].timestamp(), row["version"], row["topic_id"], row["partition"],
        leader if leader >= 0 else None, row["leader_epoch"], row["isr"], row["replicas"], row["is_removed"],
    )  # fmt: skip


class MetadataTimeline:
    """Reads the history of one cluster on. It is not thread-safe."""

    def __init__(self, root: StorageRoot, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self._events = ClusterEvents(root)
        self._versions: list[DatedVersion] = []
        self._known = deque[ClusterEvent](maxlen=_MOST_EVENTS)
        self._rows: list[pa.Table] = []
        self._seen: SeenHistory | None = None

    def read_on(self) -> SeenHistory:
        """The history up to the newest version. Raises KafkaStorageException."""
        if self._seen is not None and not self._events.is_behind():
            return self._seen
        for version, events in self._events.read_versions():
            self._known.extend(events)
            rows = [table.select(_COLUMNS) for table in version.changed]
            self._rows += rows
            info = version.commit.info
            who = info.get(REQUESTED_BY) or info.get("controller") or info.get("who")
            changed = sum(table.num_rows for table in rows)
            self._versions.append(
                DatedVersion(version.commit.version, version.committed_at, changed, who, info.get("why"))
            )
        if len(self._rows) > _MOST_TABLES:  # a page filters each
            self._rows = [pa.concat_tables(self._rows).combine_chunks()]
        self._forget()
        self._seen = SeenHistory(tuple(self._versions), tuple(self._known), tuple(self._rows))
        return self._seen

    def _forget(self) -> None:
        """Drops the oldest versions if there are too many rows."""
        while sum(table.num_rows for table in self._rows) > _MOST_ROWS and len(self._versions) > 1:
            first = self._versions.pop(0).version + 1
            kept = (rows.filter(pc.greater_equal(rows["version"], first)) for rows in self._rows)
            self._rows = [rows for rows in kept if rows.num_rows]
