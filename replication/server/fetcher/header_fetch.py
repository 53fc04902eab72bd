"""Finds the batches of a leader's log that a fetch may take: in its newest commits, and for lagging partitions in the
log's snapshot."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.rounds.fetch_steps import FetchedHeaders, FetchHeaders
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.newest_versions import YOUNG_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.broken_segments import BrokenSegment, read_segments
from lakelog.replication.storage.log.log_snapshot import batches_from
from lakelog.replication.storage.log.new_segments import LogOffset, NewSegment, NewSegments

logger = logging.getLogger(__name__)


class HeaderFetch:
    """Reads the batch headers for one fetcher, in the driver: they are few, and a job of Spark for them would cost more
    than all the rest of a micro-batch.

    `source` is the log of broker `leader`. A micro-batch, or `LeaderLogWatch`, only tells that the log has new
    segments. They are read from the fetcher's own position on, up to the newest commit, but at most `max_bytes` of them
    or one larger segment: then `has_more` is true, and the next fetch goes on without being told.
    """

    def __init__(self, name: str, source: StorageRoot, leader: int, max_bytes: int) -> None:
        self._name, self._source, self._max_bytes = name, source, max_bytes
        self._segments = NewSegments(source, leader)
        self._position = self._end = LogOffset(-1)
        self.has_more = self.follows = False

    def begin(self) -> None:
        """Begins at the newest commit. What was there before must be read from the snapshot. Raises
        KafkaStorageException."""
        self._position = self._end = self._segments.newest()
        self.has_more, self.follows = False, True

    def done(self) -> None:
        """Goes on after what was fetched last. Until then the same headers are fetched again, because a round may start
        over."""
        self._position = self._end

    def fetch(self, is_streamed: bool, step: FetchHeaders) -> FetchedHeaders:
        """Reads what `step` asks for: from the newest commits if the round was told of some, and from the snapshot.

        Raises KafkaStorageException if the leader's log cannot be read.
        """
        found: list[NewSegment] = []
        starts_over = self._end != self._position
        if is_streamed or self.has_more or starts_over:
            age = self._source.poll_age(YOUNG_SECONDS)  # a look of this process has told the round
            found, self._end, self.has_more = self._segments.read(self._position, self._max_bytes, age)
        gaps = {segment.gap for segment in found if segment.gap}
        files = [segment.file for segment in found if segment.file] if step.log_ends else []
        batches = list(self._batches(files, step, gaps))
        # After the commits: a partition that a gap leaves without a batch must find the batch here.
        wanted = {p: step.log_ends[p].offset for p in step.lagging}
        snapshot, failed = batches_from(self._source, wanted, step.topics)
        if gaps:
            logger.warning("%s: %s: the leader's snapshot is read instead", self._name, "; ".join(sorted(gaps)))
        return FetchedHeaders([*snapshot, *batches], failed, bool(gaps))

    def _batches(self, files: Iterable[AddedFile], step: FetchHeaders, gaps: set[str]) -> Iterator[FetchedBatch]:
        """The batches of the partitions that the follower fetches, without those that its log has whole. The fault of a
        broken file goes into `gaps`. [FT-04]"""
        for segment in read_segments(self._source, list(files)):
            if isinstance(segment, BrokenSegment):
                gaps.add(segment.fault)
                continue
            for header in segment.headers:
                end = step.log_ends.get(header.topic_id_partition)
                if end is not None and header.last_offset >= end.offset:
                    yield FetchedBatch.of(header, segment.name, segment.file.size)
