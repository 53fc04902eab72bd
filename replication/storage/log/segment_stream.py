"""Streams the segments that a leader's log has gained since its newest commits.

The offset is the stream's position in the leader's log. It moves for segments, and now and then for many commits that
have none; only then, and at the beginning, a micro-batch is empty. The follower reads the headers itself: a job of
Spark would cost more than all the rest. [FT-05]

Spark asks an idle stream again and again, and each question costs more than a look at a local log. So the reader waits
for segments, as Kafka's leader does before it answers a fetch request.
"""

from __future__ import annotations

import threading
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
    happens. It waits up to `wait_max_ms` for segments.
    """

    source: StorageRoot
    leader: int
    reader: str = ""
    max_bytes: int = UNBOUNDED
    poll_interval_ms: int = 0
    wait_max_ms: int = 0

    def segments(self) -> NewSegments:
        """A reader of its segments."""
        return NewSegments(self.source.child(LOG.name), self.leader)


_FAR = 16  # commits without segments after which the offset moves all the same: the follower reads them once more

Offset = dict[str, int]  # the fields of a `LogOffset`, as Spark keeps them


class SegmentStreamReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows of segments between two offsets. Spark pickles it."""

    def __init__(self, stream: SegmentStream) -> None:
        self._stream = stream
        self._segments = stream.segments()
        self._target: LogOffset | None = None
        self._looked_at, self._moved_at = float("-inf"), time.monotonic()
        # The last commit that was read without a segment for us. Commits that the leader itself fetched must start no
        # micro-batch.
        self._scanned = LogOffset(-1)
        self._has_answered = False

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """The newest commit."""
        return self._segments.newest()._asdict()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Reads everything up to now, and then ends."""
        self._target = self._segments.newest()

    def read(self, start: Offset) -> tuple[Iterator[tuple[Any, ...]], Offset]:
        """The segments after `start`, at most `max_bytes` of them, and the offset after them. Without any it answers
        after `wait_max_ms`, but at once the first time: the query begins with that answer."""
        begin, wait_ms = LogOffset(**start), self._stream.wait_max_ms if self._has_answered else 0
        ends_at, self._has_answered = time.monotonic() + wait_ms / 1000, True
        if self._target is not None:
            found, end = self._segments.between(begin, self._target, self._stream.max_bytes)
            return _rows(found), end._asdict()
        while True:
            now = time.monotonic()
            if now >= self._due_at(now):
                self._looked_at = now
                found, end = self._look(max(begin, self._scanned))
                if found or end.log >= begin.log + _FAR:
                    return _rows(found), end._asdict()
            if now >= ends_at:
                return iter(()), start
            threading.Event().wait(min(self._due_at(now), ends_at) - now)

    def _look(self, begin: LogOffset) -> tuple[list[NewSegment], LogOffset]:
        found, end, _ = self._segments.read(begin, self._stream.max_bytes)
        if end.log > begin.log:
            self._moved_at = time.monotonic()
        if not found:
            self._scanned = end
        return found, end

    def _due_at(self, now: float) -> float:
        interval = self._stream.poll_interval_ms / 1000
        if not self._stream.source.is_local:
            interval = max(interval, idle_age(now - self._moved_at))
        return self._looked_at + interval

    def readBetweenOffsets(self, start: Offset, end: Offset) -> Iterator[tuple[Any, ...]]:  # noqa: N802 (Spark's name)
        """Reads the same segments again after a restart."""
        found, _ = self._segments.between(LogOffset(**start), LogOffset(**end))
        return _rows(found)


def _rows(found: Sequence[NewSegment]) -> Iterator[tuple[Any, ...]]:
    """Rows of `schemas.NEW_SEGMENTS`. Spark copies the iterator, and a generator cannot be copied."""
    return iter([(version, file and file.name, gap) for version, file, gap in found])
