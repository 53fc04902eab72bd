"""Streams the segments that a leader's log has gained since its newest commits.

The offset is the stream's position in the leader's log. It moves only for segments, so each micro-batch but the first
has some. Who receives a micro-batch reads the headers itself: a job of Spark would cost more than all the rest. [FT-05]
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from lakelog.replication.storage.delta.newest_versions import idle_age
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.new_segments import UNBOUNDED, LogOffset, NewSegment, NewSegments
from lakelog.schemas import LOG


@dataclass(frozen=True)
class SegmentStream:
    """The input of a stream of segments: a leader's root.

    `reader` names the query that reads it. `max_bytes` limits the segments of a micro-batch in bytes; it has at least
    one. The stream looks at the log at most every `poll_interval_ms`, and less often in an object store where nothing
    happens.
    """

    source: StorageRoot
    leader: int
    reader: str = ""
    max_bytes: int = UNBOUNDED
    poll_interval_ms: int = 0

    def segments(self) -> NewSegments:
        """A reader of its segments."""
        return NewSegments(self.source.child(LOG.name), self.leader)


Offset = dict[str, int]  # the fields of a `LogOffset`, as Spark keeps them


class SegmentStreamReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows of segments between two offsets."""

    def __init__(self, stream: SegmentStream) -> None:
        self._stream = stream
        self._segments = stream.segments()
        self._target: LogOffset | None = None
        self._polled_at, self._moved_at = float("-inf"), time.monotonic()
        # The last commit that was read without a segment for us. Commits that the leader itself fetched must start no
        # micro-batch.
        self._scanned = LogOffset(-1)

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """The newest commit."""
        return self._segments.newest()._asdict()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Reads everything up to now, and then ends."""
        self._target = self._segments.newest()

    def read(self, start: Offset) -> tuple[Iterator[tuple[Any, ...]], Offset]:
        """The segments after `start`, at most `max_bytes` of them, and the offset after them."""
        begin = LogOffset(**start)
        if self._target is not None:
            found, end = self._segments.between(begin, self._target, self._stream.max_bytes)
            return _rows(found), end._asdict()
        if not self._is_due():
            return iter(()), start
        begin = max(begin, self._scanned)
        found, end = self._segments.read(begin, self._stream.max_bytes)
        if end.log > begin.log:
            self._moved_at = time.monotonic()
        if found:
            return _rows(found), end._asdict()
        self._scanned = end
        return iter(()), start

    def readBetweenOffsets(self, start: Offset, end: Offset) -> Iterator[tuple[Any, ...]]:  # noqa: N802 (Spark's name)
        """Reads the same segments again after a restart."""
        found, _ = self._segments.between(LogOffset(**start), LogOffset(**end))
        return _rows(found)

    def _is_due(self) -> bool:
        now, interval = time.monotonic(), self._stream.poll_interval_ms / 1000
        if not self._stream.source.is_local:
            interval = max(interval, idle_age(now - self._moved_at))
        if now - self._polled_at < interval:
            return False
        self._polled_at = now
        return True


def _rows(found: Sequence[NewSegment]) -> Iterator[tuple[Any, ...]]:
    """Rows of `schemas.NEW_SEGMENTS`. Spark copies the iterator, and a generator cannot be copied."""
    return iter([(version, file and file.name, file and file.size, gap) for version, file, gap in found])
