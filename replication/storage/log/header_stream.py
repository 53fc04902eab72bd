"""Streams batch headers from the newest commits of a leader's log.

Kafka: a fetch request and its response, without the records [FT-05]. The offset is the stream's position in the
leader's log. It moves only for headers, so each micro-batch but the first has some.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.storage.delta.commit import Commit
from lakelog.replication.storage.delta.commit_reader import last_version, read_commit
from lakelog.replication.storage.delta.known_commits import KnownCommits
from lakelog.replication.storage.delta.newest_versions import idle_age
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment import read_segment
from lakelog.replication.storage.log.segment_name import leader_of
from lakelog.schemas import LOG

UNBOUNDED = 2**62
_AHEAD = 64  # commits that one look reads


@dataclass(frozen=True)
class HeaderStream:
    """The input of a header stream: a leader's root.

    `reader` names the query that reads it. `max_bytes` limits the segments of a micro-batch in bytes; it has at least
    one. The stream looks at the log at most every `poll_interval_ms`, and less often in an object store where nothing
    happens.
    """

    source: StorageRoot
    leader: int
    reader: str = ""
    max_bytes: int = UNBOUNDED
    poll_interval_ms: int = 0


Offset = dict[str, int]


class RecordBatchReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads header rows between two offsets. `log` is the last version that was read whole, `files` the number of added
    files already read from the next version."""

    def __init__(self, stream: HeaderStream) -> None:
        self._stream = stream
        self._log = stream.source.child(LOG.name)
        self._commits = KnownCommits(self._log)
        self._read: dict[int, Commit] = {}  # commits that the last look has found
        self._followed = -1  # the commit before them, which was there after they were read
        self._target: int | None = None
        self._polled_at, self._moved_at = float("-inf"), time.monotonic()
        # The last commit that was read without a header for us. Commits that the leader itself fetched must start no
        # micro-batch.
        self._scanned: Offset = {"log": -1, "files": 0}

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """The newest commit."""
        return {"log": last_version(self._log), "files": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Reads everything up to now, and then ends."""
        self._target = last_version(self._log)

    def read(self, start: Offset) -> tuple[Iterator[tuple[Any, ...]], Offset]:
        """The headers after `start`, at most `max_bytes` of segments, and the offset after them."""
        if self._target is None and not self._is_due():
            return iter(()), start
        begin = self._scanned if self._scanned["log"] > start["log"] else start
        newest = self._newest(begin["log"]) if self._target is None else self._target
        if newest > begin["log"]:
            self._moved_at = time.monotonic()
        rows, end = self._headers(begin, newest, self._stream.max_bytes)
        if not rows and self._target is None:
            self._scanned, end = end, start
        return iter(rows), end

    def _newest(self, version: int) -> int:
        """The newest commit, or the last one that is read now. It reads the commits after `version` instead of looking
        for them first. Only a listing tells where that version is gone."""
        self._read, found, is_torn = {}, list[Commit](), False
        with suppress(FileNotFoundError):
            while version >= 0 and len(found) < _AHEAD and not is_torn:
                try:
                    found.append(read_commit(self._log, version + len(found) + 1))
                except CorruptRecordException:
                    is_torn = True  # it counts, and its reader says why it cannot be read
        if version < 0 or not self._is_there(version):
            return self._commits.newest(-1)
        for commit in found:
            self._commits.remember(commit.version, commit.stamp)
        self._read, self._followed = {commit.version: commit for commit in found}, version
        return version + len(found) + is_torn

    def readBetweenOffsets(self, start: Offset, end: Offset) -> Iterator[tuple[Any, ...]]:  # noqa: N802 (Spark's name)
        """Reads the same headers again after a restart."""
        newest = end["log"] + (1 if end["files"] else 0)
        rows, _ = self._headers(start, newest, UNBOUNDED, end["files"] or None)
        return iter(rows)

    def _is_due(self) -> bool:
        now, interval = time.monotonic(), self._stream.poll_interval_ms / 1000
        if not self._log.is_local:
            interval = max(interval, idle_age(now - self._moved_at))
        if now - self._polled_at < interval:
            return False
        self._polled_at = now
        return True

    def _headers(
        self, start: Offset, newest: int, max_bytes: int, last_files: int | None = None
    ) -> tuple[list[tuple[Any, ...]], Offset]:
        rows: list[tuple[Any, ...]] = []
        version, skip, size = start["log"], start["files"], 0
        while version < newest:
            try:
                commit = self._read.pop(version + 1, None) or read_commit(self._log, version + 1)
                files = [file for file in commit.adds if file.data_change]
            except FileNotFoundError:
                return self._gap(newest)
            except CorruptRecordException as error:
                return self._gap(newest, str(error))
            stop = last_files if last_files is not None and version + 1 == newest else len(files)
            for index in range(skip, stop):
                if size >= max_bytes:
                    return rows, {"log": version, "files": index}
                found = self._header_rows(version + 1, files[index])
                rows += found
                size += files[index].size if found else 0  # otherwise a read without rows might never advance
            version, skip = version + 1, 0
        if 0 <= start["log"] < version and start["log"] != self._followed and not self._is_there(start["log"]):
            return self._gap(newest)
        return rows, {"log": version, "files": 0}

    def _is_there(self, version: int) -> bool:
        return self._commits.is_sure(version) or self._commits.is_there(version)

    def _gap(self, newest: int, reason: str | None = None) -> tuple[list[tuple[Any, ...]], Offset]:
        """Discards all headers of this read: a late commit may have landed in a gap that a clean-up left."""
        reason = reason or f"commits up to {newest} of {self._log.uri} have been cleaned up"
        return [_gap_row(newest, reason)], {"log": newest, "files": 0}

    def _header_rows(self, version: int, file: Any) -> list[tuple[Any, ...]]:
        """The headers of one added file; none if the file's name says that another broker led."""
        if leader_of(file.name) not in (None, self._stream.leader):
            return []
        try:
            segment = read_segment(self._log, file)
        except CorruptRecordException as error:
            return [_gap_row(version, str(error))]
        return [header_row(version, file.name, file.size, header) for header in segment.headers]


def header_row(version: int, name: str, size: int, header: Any) -> tuple[Any, ...]:
    """A row of `schemas.RECORD_BATCHES` for a file of `size` bytes."""
    return (
        version, name, size, header.topic, header.topic_id, header.partition,
        header.leader_epoch, header.base_offset, header.last_offset, header.bytes, header.previous, header.chain, None,
    )  # fmt: skip


def _gap_row(version: int, reason: str) -> tuple[Any, ...]:
    return (version, *[None] * 11, reason)
