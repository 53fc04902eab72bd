"""Removes records from a log of which a later one has the same key: it writes the rest of each segment first, then
makes one commit. See `protocol.log_cleaner` for what may go.

A crash before the commit leaves files that no commit names. As all files come in with one commit, no tombstone goes
before the older records of its key. Followers, readers and streams need not react: batch headers and offsets stay.

Kafka: `Cleaner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.protocol.log_cleaner import LogToClean, delete_horizon, may_lose_tombstones
from lakelog.replication.protocol.partition_log import PlacedBatch
from lakelog.replication.protocol.record_batch import BatchHeader, OffsetRange, Retained, TopicIdPartition
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_compaction import Pace
from lakelog.replication.storage.log.log_rewrite import NewFiles
from lakelog.replication.storage.log.log_state import LogChange, LogState
from lakelog.replication.storage.log.log_txns import cleaned_txn
from lakelog.replication.storage.log.partition_rows import SegmentFile, read_row_ranges, row_ranges
from lakelog.replication.storage.log.pieces import decoded_batches
from lakelog.replication.storage.log.record_digest import record_digest
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import Segment, record_bytes, write_segment

_KEYS = ("key", "offset")

# Calls a function with each segment, and yields the results in order.
OnEach: TypeAlias = "Callable[[Callable[[Segment], Segment | None], Sequence[Segment]], Iterable[Segment | None]]"


class Cleaned(NamedTuple):
    """The result of a cleaning: the offset up to which the log is clean, and the bytes of the files that it replaced,
    before and after."""

    stop: int
    bytes_before: int
    bytes_after: int


class LatestOffsets:
    """The last offset of each key in a part of a log. Kafka: `OffsetMap`."""

    def __init__(self) -> None:
        self._keys = pa.array([], pa.large_binary())
        self._offsets = pa.array([], pa.int64())
        self._added: list[pa.Table] = []  # and not yet merged, at most as many records as there are keys

    @property
    def bytes(self) -> int:
        """The size in memory."""
        return int(self._keys.nbytes + self._offsets.nbytes) + sum(table.nbytes for table in self._added)

    def add(self, rows: pa.Table) -> None:
        """Adds records, which have later offsets than those before. Columns: key, offset."""
        keys = rows["key"].cast(pa.large_binary())
        self._added.append(pa.table({"key": keys, "offset": rows["offset"]}).filter(pc.is_valid(keys)))
        # Each merge goes through all keys, so a merge for each file would take quadratic time.
        if sum(table.num_rows for table in self._added) >= len(self._keys):
            self.merge()

    def merge(self) -> None:
        """Merges what was added. Call it after the last `add`."""
        known = pa.table({"key": self._keys, "offset": self._offsets})
        table = pa.concat_tables([known, *self._added])
        newest = table.group_by("key", use_threads=False).aggregate([("offset", "max")])
        self._keys, self._offsets = newest["key"].combine_chunks(), newest["offset_max"].combine_chunks()
        self._added = []

    def are_latest(self, rows: pa.Table) -> pa.ChunkedArray:
        """Whether each record has a key, and none of these offsets is a later one of it. A call takes time for all
        keys, so give it many records."""
        keys = rows["key"].cast(pa.large_binary())
        latest = self._offsets.take(pc.index_in(keys, value_set=self._keys).combine_chunks())
        is_latest = pc.fill_null(pc.less_equal(latest, rows["offset"]), True)
        return pc.and_(is_latest, pc.is_valid(keys))


def in_turn(pace: Pace) -> OnEach:
    """Cleans segments in this process, one after the other."""

    def on_each(call: Callable[[Segment], Segment | None], segments: Sequence[Segment]) -> Iterator[Segment | None]:
        for segment in segments:
            new = call(segment)
            yield new
            pace(segment.file.size + (new.file.size if new else 0))

    return on_each


def clean(
    log: ReplicaLog, partition: TopicIdPartition, found: LogToClean, retention_ms: int, now_us: int,
    most_key_bytes: int, who: str, pace: Pace = lambda _: None, on_each: Callable[[Pace], OnEach] = in_turn,
) -> Cleaned | None:  # fmt: skip
    """Cleans a partition's log as far as `found` says, or up to where the keys take `most_key_bytes` in memory.

    Returns None if the log has changed meanwhile, so that it gave up. `retention_ms`: `delete.retention.ms`. `pace` as
    for `compact`. `on_each`: where segments are cleaned. Raises CorruptRecordException, naming the file, if one cannot
    be read, and KafkaStorageException.
    """
    state = log.current()
    batches = state.partition(partition).batches_between(found.log_start, found.dirty.stop)
    if not batches or batches[-1].header.next_offset != found.dirty.stop:
        return None
    latest, end = _latest_offsets(log.root, state, partition, found, batches, most_key_bytes, pace)
    dirty = OffsetRange(found.dirty.start, end.next_offset)
    job = _CleanJob(log.root, partition, dirty, latest, retention_ms, now_us)
    names = dict.fromkeys(batch.segment for batch in batches if batch.header.next_offset <= dirty.stop)
    sources = [state.segments[name] for name in names]
    with NewFiles(log) as files:
        written = zip(sources, on_each(pace)(job.cleaned, sources), strict=True)
        pairs = [(source, files.add(new)) for source, new in written if new is not None]
        if not _commit(log, partition, files, pairs, end, who):
            return None
    before, after = (sum(pair[n].file.size for pair in pairs) for n in (0, 1))
    return Cleaned(dirty.stop, before, after)


def _latest_offsets(
    root: StorageRoot, state: LogState, partition: TopicIdPartition, found: LogToClean, batches: Sequence[PlacedBatch],
    most_bytes: int, pace: Pace,
) -> tuple[LatestOffsets, BatchHeader]:  # fmt: skip
    """The last offset of each key in the dirty part, and the last batch of it that they cover."""
    latest, dirty = LatestOffsets(), [b for b in batches if b.header.next_offset > found.dirty.start]
    end = dirty[0].header
    for name, run in groupby(dirty, key=lambda batch: batch.segment):
        headers = [batch.header for batch in run]
        segment = state.segments[name]
        for rows in _keys_of(root, segment, partition, OffsetRange(headers[0].base_offset, headers[-1].next_offset)):
            latest.add(rows)
            pace(rows.nbytes)
        end = headers[-1]
        if latest.bytes >= most_bytes:
            break
    latest.merge()
    return latest, end


def _keys_of(
    root: StorageRoot, segment: Segment, partition: TopicIdPartition, offsets: OffsetRange
) -> Iterator[pa.Table]:  # fmt: skip
    ranges = row_ranges(root, segment, partition, offsets)
    yield from read_row_ranges(SegmentFile.of(root, segment), ranges, _KEYS, use_threads=False) if ranges else ()


@dataclass(frozen=True)
class _CleanJob:
    """Cleans segments, in the broker or on an executor."""

    root: StorageRoot
    topic_id_partition: TopicIdPartition
    dirty: OffsetRange
    latest: LatestOffsets
    retention_ms: int
    now_us: int

    def cleaned(self, segment: Segment) -> Segment | None:
        """A new segment with the same batches, without the records that go; None if it would be the same."""
        if not self._may_change(segment):
            return None
        tables, headers = list[pa.Table](), list[BatchHeader]()
        batches = [(batch.headers[0], batch.table) for batch in decoded_batches(self.root, segment)]
        ours = pa.concat_tables(rows.select(_KEYS) for header, rows in batches if self._is_ours(header))
        are_latest, place = self.latest.are_latest(ours), 0
        for header, rows in batches:
            rest, new = rows, header
            if self._is_ours(header):
                rest, new = self._rest(header, rows, are_latest.slice(place, rows.num_rows))
                place += rows.num_rows
            tables.append(rest)
            headers.append(new)
        if all(new is old for new, old in zip(headers, segment.headers, strict=True)):
            return None
        return write_segment(self.root, None, pa.concat_tables(tables), headers)

    def _is_ours(self, header: BatchHeader) -> bool:
        return header.topic_id_partition == self.topic_id_partition and header.next_offset <= self.dirty.stop

    def _may_change(self, segment: Segment) -> bool:
        """Whether the segment has a record that goes, as far as its keys say, or may have a tombstone that does."""
        ours = [header for header in segment.headers if self._is_ours(header)]
        if any(h.next_offset > self.dirty.start or may_lose_tombstones(h, self.now_us) for h in ours):
            return True
        offsets = OffsetRange(ours[0].base_offset, ours[-1].next_offset)
        rows = pa.concat_tables(_keys_of(self.root, segment, self.topic_id_partition, offsets))
        return not pc.all(self.latest.are_latest(rows)).as_py()

    def _rest(
        self, header: BatchHeader, rows: pa.Table, stays: pa.ChunkedArray
    ) -> tuple[pa.Table, BatchHeader]:  # fmt: skip
        is_tombstone = pc.is_null(rows["value"])
        if may_lose_tombstones(header, self.now_us):
            stays = pc.and_not(stays, is_tombstone)
        rest = rows.filter(stays)
        has_tombstones = bool(rest["value"].null_count)
        horizon = delete_horizon(header, has_tombstones, self.dirty, self.now_us, self.retention_ms)
        if rest.num_rows == rows.num_rows and horizon == header.retained.delete_horizon:
            return rows, header
        size = pc.sum(record_bytes(rest)).as_py() or 0
        return rest, replace(header, cleaned=Retained(rest.num_rows, size, record_digest(rest), horizon))


def _commit(
    log: ReplicaLog, partition: TopicIdPartition, files: NewFiles, pairs: Sequence[tuple[Segment, Segment]],
    end: BatchHeader, who: str,
) -> bool:  # fmt: skip
    """Commits the new segments. Returns whether it did: not if a source has gone, or if the records that a later one
    has made obsolete are no longer followed by it."""
    adds, removes = tuple(new for _, new in pairs), tuple(source for source, _ in pairs)
    is_clean = False

    def decide(state: LogState) -> LogChange | None:
        nonlocal is_clean
        known = state.partition(partition)
        is_clean = known.cleaned_to == end.next_offset and all(new.name in state.segments for new in adds)
        is_gone = any(source.name not in state.segments for source in removes)
        if is_gone or known.chain_at(end.next_offset) != end.chain:
            return None
        change = LogChange(adds, removes, cleaned_txn(partition, end.next_offset), data_change=not removes)
        return files.offered(change)

    cause = {"who": who, "why": "clean", "from": len(removes), "to": len(adds)}
    return log.transact(cause, decide) is not None or is_clean
