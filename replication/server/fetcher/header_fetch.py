"""Follows a leader's log: polls it for new segments, and finds the batches that a fetch may take: in new commits,
and for lagging partitions in the log's snapshot. [FT-05]"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import accumulate

from lakelog.replication.errors import KafkaStorageException
from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.protocol.rounds.fetch_round import FetchedHeaders, FetchHeaders
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.freshness import LONGEST_SECONDS, RECENT_SECONDS
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.broken_segments import BrokenSegment, SoughtRange, read_segments
from lakelog.replication.storage.log.log_snapshot import Read, segments_from, wanted_batches
from lakelog.replication.storage.log.new_segments import NewSegment, NewSegments
from lakelog.replication.storage.log.segment import Segment

logger = logging.getLogger(__name__)

_MOST_FOUND = 64  # segments: then a round comes first, or they would fill the memory
_FIRST_WAIT_SECONDS = 0.2  # after an error of a poll; twice as long after each further one


class HeaderFetch:
    """Reads the batch headers of one fetcher's rounds. The driver reads them, or executors where they are many, see
    `SegmentCopier.read_footers`.

    `source` is the log of broker `leader`. `has_new_commits` polls for new segments of that leader, and the next fetch
    takes them: at most `max_bytes` of them or one larger segment. If it `has_more`, the fetch after it need not wait
    for new segments.

    The batches of a lagging partition come from the snapshot. They stay in memory until its log has them, with those
    of newer commits, so that a long catch-up reads each footer once.
    """

    def __init__(
        self, name: str, source: StorageRoot, leader: int, max_bytes: int, read_footers: Read | None = None
    ) -> None:  # fmt: skip
        self._name, self._source, self._max_bytes = name, source, max_bytes
        self._read_footers = read_footers or partial(read_segments, source)
        self._segments = NewSegments(source, leader)
        self._found: list[NewSegment] = []  # by polls, and no round has finished with them
        self._reported = self._taken = 0  # of them: by `has_new_commits`, and by the last fetch
        self._errors, self._next_poll_at = 0, float("-inf")
        self._left: dict[TopicIdPartition, list[FetchedBatch]] = {}  # of lagging partitions, which still lack them
        self._known: dict[str, Segment] = {}
        self._must_poll = self.follows = False

    @property
    def segments(self) -> Mapping[str, Segment]:
        """The segments of the batches that the last fetch has returned, by name: who copies them reads no footer."""
        return self._known

    def begin(self) -> None:
        """Begins at the newest commit. Older batches must be read from the snapshot. Raises
        KafkaStorageException."""
        self.stop()
        self._segments.begin()
        self._errors, self._next_poll_at, self.follows = 0, float("-inf"), True

    def stop(self) -> None:
        """Follows the log no more, and drops all that it has found."""
        self._found, self._reported, self._taken = [], 0, 0
        self._must_poll = self.follows = False
        self.forget()

    def has_new_commits(self) -> bool:
        """Whether there are segments, or a gap, that no call before has reported. In an object store it may use an
        earlier poll of this process, the older the less happens.

        The first of several errors makes a round due: its fetch reads again, and raises the error if it is still
        there.
        """
        if self.follows and len(self._found) < _MOST_FOUND and time.monotonic() >= self._next_poll_at:
            try:
                self._poll(LONGEST_SECONDS)
            except KafkaStorageException:
                wait = min(_FIRST_WAIT_SECONDS * 2 ** min(self._errors, 10), LONGEST_SECONDS)
                self._errors, self._next_poll_at = self._errors + 1, time.monotonic() + wait
                if self._errors == 1:
                    self._must_poll = True
                    return True
        has_new_commits = len(self._found) > self._reported
        self._reported = len(self._found)
        return has_new_commits

    def _poll(self, max_staleness: float) -> None:
        """Adds the segments of the next commits to those that were found."""
        self._found += self._segments.read(self._source.poll_staleness(max_staleness))
        self._errors, self._must_poll = 0, False
        must_list = self._segments.version < 0 and not self._source.is_local  # there is no log yet
        self._next_poll_at = time.monotonic() + LONGEST_SECONDS if must_list else float("-inf")

    @property
    def has_found(self) -> bool:
        """Whether the next fetch takes segments that were found, or reads again after an error."""
        return bool(self._found) or self._must_poll

    @property
    def has_more(self) -> bool:
        """Whether there is more than the last fetch has taken."""
        return self._taken < len(self._found) or self._segments.has_more

    @property
    def partitions(self) -> AbstractSet[TopicIdPartition]:
        """The partitions that have their batches in memory."""
        return self._left.keys()

    def forget(self, but: Collection[TopicIdPartition] = ()) -> None:
        """Drops the batches in memory, but those of these partitions. Others that lag read the snapshot again."""
        self._left = {partition: left for partition, left in self._left.items() if partition in but}

    def done(self) -> None:
        """Ends a round: the next fetch goes on after the last one. Until then a fetch returns the same headers again,
        because a round may start over."""
        del self._found[: self._taken]
        self._reported, self._taken = max(self._reported - self._taken, 0), 0
        names = {batch.segment for left in self._left.values() for batch in left}
        self._known = {name: segment for name, segment in self._known.items() if name in names}

    def fetch(self, step: FetchHeaders) -> FetchedHeaders:
        """Reads what `step` asks for: from new segments, and for lagging partitions from memory or from the snapshot.

        Raises KafkaStorageException if the leader's log cannot be read.
        """
        if self._must_poll:
            self._must_poll = False
            self._poll(RECENT_SECONDS)
        while self._segments.has_more and sum(_sizes(self._found)) < self._max_bytes:
            self._poll(RECENT_SECONDS)
        fitting = sum(1 for size in accumulate(_sizes(self._found)) if size <= self._max_bytes)
        self._taken = max(fitting, min(len(self._found), 1))
        return self._fetch(step, self._found[: self._taken])

    def behind(self, step: FetchHeaders) -> list[FetchedBatch]:
        """The batches that the follower lacks. It polls once, because rounds wait meanwhile. The batches stay in
        memory, for partitions that lag from now on, and the fetches go on after them. If a part cannot be read, it
        returns nothing, and the next fetch raises the error. Raises KafkaStorageException."""
        self._poll(RECENT_SECONDS)
        found = self._fetch(step, self._found)
        if found.failed or found.commits_have_gap:
            return []
        self._taken = len(self._found)
        self.done()
        for batch in [batch for batch in found.batches if batch.topic_id_partition not in self._left]:
            self._left.setdefault(batch.topic_id_partition, []).append(batch)
        return [batch for left in self._left.values() for batch in left]

    @property
    def has_left(self) -> bool:
        """Whether batches in memory wait for a round."""
        return any(self._left.values())

    def _fetch(self, step: FetchHeaders, found: Sequence[NewSegment]) -> FetchedHeaders:
        gaps = {segment.gap for segment in found if segment.gap}
        ends = {partition: end.offset for partition, end in step.log_ends.items()}
        files = [segment.file for segment in found if segment.file] if ends else []
        if files:  # a leader's log also has partitions that others fetch, or no broker
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

    def _keep(self, segments: Iterable[Segment], wanted: Mapping[TopicIdPartition, int]) -> list[FetchedBatch]:
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


def _sizes(segments: Iterable[NewSegment]) -> Iterator[int]:
    return (segment.file.size if segment.file else 0 for segment in segments)
