"""Streams that a leader's log has new segments: each row starts a micro-batch of a follower.

The follower's own thread finds the segments, and the follower reads their headers itself: a job of Spark would cost
more than all the rest. So the stream only passes the news on. [FT-05]

Spark asks an idle stream again and again, and each question costs more than many looks at a log. So the reader waits
for news, as Kafka's leader does before it answers a fetch request: longer each time that there were none. Spark cannot
stop a query while its source waits, so a follower that ends its query rings first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import SimpleDataSourceStreamReader

from lakelog.replication.storage.log.bell import STOPS, Bell

Offset = dict[str, int]  # `news`: how many rows there were
_LONGEST_SECONDS = 10.0


@dataclass(frozen=True)
class SegmentStream:
    """The input of a stream. `reader` names the query that reads it. `bell` is the path of the `Bell` that rings for
    new segments; without one the stream brings nothing. It waits up to `wait_max_ms` for news, and while there are none
    twice as long each time, up to ten seconds."""

    reader: str = ""
    bell: str = ""
    wait_max_ms: int = 0


class SegmentStreamReader(SimpleDataSourceStreamReader):
    """Reads the news. Spark pickles it before its first use."""

    def __init__(self, stream: SegmentStream) -> None:
        self._stream = stream
        self._bell: Bell | None = None
        self._has_answered = False
        self._shortest = self._seconds = stream.wait_max_ms / 1000

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """No news yet."""
        return {"news": 0}

    def read(self, start: Offset) -> tuple[Iterator[tuple[Any, ...]], Offset]:
        """A row of the newest version that the bell has told of, and the offset after it. Without any it answers after
        the wait, but at once the first time: the query begins with that answer."""
        if not self._has_answered:
            self._has_answered = True
            return iter(()), start
        version = self._wait(self._seconds)
        if version is None:
            self._seconds = max(self._shortest, min(2 * self._seconds, _LONGEST_SECONDS))
            return iter(()), start
        if version == STOPS:
            self._shortest = self._seconds = 0.0
            return iter(()), start
        self._seconds = self._shortest
        return iter([(version,)]), {"news": start["news"] + 1}

    def _wait(self, seconds: float) -> int | None:
        if not self._stream.bell:
            threading.Event().wait(seconds)
            return None
        self._bell = self._bell or Bell(self._stream.bell)
        return self._bell.wait(seconds)

    def readBetweenOffsets(self, start: Offset, end: Offset) -> Iterator[tuple[Any, ...]]:  # noqa: N802 (Spark's name)
        """Nothing: after a restart a follower looks for all segments by itself."""
        return iter(())
