"""Finds the batches of a leader's log that a fetch may take: in its newest commits, and for lagging partitions in the
log's snapshot. [FT-05]"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.fetch_steps import FetchedHeaders, FetchHeaders
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.newest_versions import YOUNG_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.broken_segments import BrokenSegment, SoughtRange, read_segments
from lakelog.replication.storage.log.log_snapshot import Read, segments_from, wanted_batches
from lakelog.replication.storage.log.new_segments import FULL_LOOK, UNBOUNDED, LogOffset, NewSegment, NewSegments
from lakelog.replication.storage.log.segment import Segment

logger = logging.getLogger(__name__)


class HeaderFetch:
    """Reads the batch headers of one fetcher's rounds. The driver reads them, or executors where they are many, see
    `SegmentCopier.read_footers`.

    `source` is the log of broker `leader`. `LeaderLogWatch` only tells that the log has new segments. They are read
    from the fetcher's own position on, up to the newest commit, but at most `max_bytes` of them or one larger segment:
    then `has_more` is true, and the next fetch goes on without being told.

    The batches of a lagging partition come from the snapshot. They stay in memory until its log has them, with those
    of newer commits, so that a long catch-up reads each footer once.
    """

    def __init__(
        self, name: str, source: StorageRoot, leader: int, max_bytes: int, read_footers: Read | None = None
    ) -> None:  # fmt: skip
        self._name, self._source, self._max_bytes = name, source, max_bytes
        self._read_footers = read_footers or partial(read_segments, source)
        self._segments = NewSegments(source, leader)
        self._position = self._end = LogOffset(-1)
        self._left: dict[TopicIdPartition, list[FetchedBatch]] = {}  # of lagging partitions: all up to the position
        self._known: dict[str, Segment] = {}
        self.has_more = self.follows = False

    @property
    def segments(self) -> Mapping[str, Segment]:
        """The segments of the batches that the last fetch has returned, by name: who copies them reads no footer."""
        return self._known

    def begin(self) -> None:
        """Begins at the newest commit. What was there before must be read from the snapshot. Raises
        KafkaStorageException."""
        self._position = self._end = self._segments.newest()
        self.has_more, self.follows = False, True
        self.forget()

    @property
    def partitions(self) -> AbstractSet[TopicIdPartition]:
        """The partitions that have their batches in memory."""
        return self._left.keys()

    def forget(self, but: Collection[TopicIdPartition] = ()) -> None:
        """Gives up what it has in memory, but that of these partitions. Others that lag read the snapshot again."""
        self._left = {partition: left for partition, left in self._left.items() if partition in but}

    def done(self) -> None:
        """Goes on after what was fetched last. Until then the same headers are fetched again, because a round may start
        over."""
        self._position = self._end
        names = {batch.segment for left in self._left.values() for batch in left}
        self._known = {name: segment for name, segment in self._known.items() if name in names}

    def fetch(self, reads_commits: bool, step: FetchHeaders) -> FetchedHeaders:
        """Reads what `step` asks for: from the newest commits if the round was told of some, and for lagging partitions
        from memory or from the snapshot.

        Raises KafkaStorageException if the leader's log cannot be read.
        """
        return self._fetch(reads_commits, step, self._max_bytes)

    def behind(self, step: FetchHeaders) -> list[FetchedBatch]:
        """What the follower lacks, from some 64 commits at most, because rounds wait for it. It stays in memory, for
        partitions that lag from now on. The fetches go on after it. If a part cannot be read there is nothing, and the
        next fetch tells why. Raises KafkaStorageException."""
        found = self._fetch(True, step, UNBOUNDED, reads_all=False)
        if found.failed or found.commits_have_gap:
            return []
        self.done()
        for batch in [batch for batch in found.batches if batch.topic_id_partition not in self._left]:
            self._left.setdefault(batch.topic_id_partition, []).append(batch)
        return [batch for left in self._left.values() for batch in left]

    @property
    def has_left(self) -> bool:
        """Whether batches in memory wait for a round."""
        return any(self._left.values())

    def _fetch(
        self, reads_commits: bool, step: FetchHeaders, max_bytes: int, reads_all: bool = True
    ) -> FetchedHeaders:  # fmt: skip
        found: list[NewSegment] = []
        starts_over = self._end != self._position
        if reads_commits or self.has_more or starts_over:
            age = self._source.poll_age(YOUNG_SECONDS)  # a look of this process has told the round
            if reads_all:
                found, self._end, self.has_more = self._segments.read(self._position, max_bytes, age)
            else:
                found, self._end, newest = self._segments.read_some(self._position, max_bytes, age)
                self.has_more = newest.log >= self._position.log + FULL_LOOK
        gaps = {segment.gap for segment in found if segment.gap}
        ends = {partition: end.offset for partition, end in step.log_ends.items()}
        files = [segment.file for segment in found if segment.file] if ends else []
        if files:  # a leader's log also has partitions that others fetch, or nobody
            sought = SoughtRange.of(ends, step.topics)
            files = [file for file in files if sought.may_meet(file)]
        self._left = {
            p: [batch for batch in self._left[p] if batch.last_offset >= ends[p]]
            for p in step.lagging
            if p in self._left
        }
        # A truncation may have moved a log end below what is in memory.
        self._left = {p: left for p, left in self._left.items() if not left or _first(left) <= ends[p]}
        batches = self._keep(self._sound(files, gaps), ends)
        # After the commits: a partition that a gap leaves without a batch must find the batch here.
        wanted = {p: ends[p] for p in step.lagging if gaps or p not in self._left}
        snapshot, failed = segments_from(self._source, wanted, step.topics, self._read_footers)
        wanted = {partition: offset for partition, offset in wanted.items() if partition not in failed}
        self._left.update({partition: [] for partition in wanted})
        self._keep(snapshot, wanted)
        batches += [batch for left in self._left.values() for batch in left]
        if gaps:
            logger.warning("%s: %s: the leader's snapshot is read instead", self._name, "; ".join(sorted(gaps)))
            self.forget()
        return FetchedHeaders(batches, failed, bool(gaps))

    def _keep(
        self, segments: Iterable[Segment], wanted: Mapping[TopicIdPartition, int]
    ) -> list[FetchedBatch]:  # fmt: skip
        """Keeps the wanted batches of lagging partitions. Returns those of the others. [FT-04]"""
        others: list[FetchedBatch] = []
        for segment in segments:
            batches = wanted_batches(segment, wanted)
            if batches:
                self._known[segment.name] = segment
            for batch in batches:
                self._left.get(batch.topic_id_partition, others).append(batch)
        return others

    def _sound(self, files: Sequence[AddedFile], gaps: set[str]) -> Iterator[Segment]:
        """The segments in these files. The fault of a broken one goes into `gaps`."""
        for segment in self._read_footers(files) if files else ():
            if isinstance(segment, BrokenSegment):
                gaps.add(segment.fault)
            else:
                yield segment


def _first(batches: Iterable[FetchedBatch]) -> int:
    return min(batch.base_offset for batch in batches)
