"""Merges small segments: the same batches, in files of one partition, in one commit that changes no data.

Followers, readers and streams need not react: offsets, batches and rows stay the same. The files are written before the
commit, so nobody waits for them. If an old file has gone by then, nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.compaction import Compaction, LogFile, plan_compaction, size_class
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.delta.newest_versions import LONGEST_SECONDS
from lakelog.replication.storage.log.log_rewrite import NewFiles, readable, report_unreadable
from lakelog.replication.storage.log.log_state import LogState
from lakelog.replication.storage.log.replica_log import LogChange, ReplicaLog
from lakelog.replication.storage.log.segment import Segment, read_records, rows_of, write_segment
from lakelog.schemas import LOG

# Called with the size in bytes of each file that was read or written; it may wait, and it may raise.
Pace = Callable[[int], None]


def compact(
    log: ReplicaLog, segment_bytes: int, min_files: int, max_bytes: int, who: str, pace: Pace = lambda _: None
) -> int:  # fmt: skip
    """Merges the small files for which it pays off, once. Returns the number of files that it replaced.

    `segment_bytes` and `max_bytes` are sizes in bytes. If `pace` raises, the log stays as it is. Raises
    CorruptRecordException, naming the file, if one cannot be read, and KafkaStorageException.
    """
    segments = readable(log.refresh(LONGEST_SECONDS))
    small = [s for s in segments.values() if s.headers and size_class(s.file.size, segment_bytes) >= 0]
    if len(small) < min_files:
        return 0
    files = [LogFile(s.name, s.file.size, s.headers) for s in small]
    plan = plan_compaction(files, segment_bytes, min_files, max_bytes)
    return _carry_out(log, plan, [segments[file.name] for file in plan.files], who, pace) if plan else 0


def _carry_out(log: ReplicaLog, plan: Compaction, sources: Sequence[Segment], who: str, pace: Pace) -> int:
    has_landed = False
    with NewFiles(log) as new:
        merged = tuple(new.add(segment) for segment in _merge(log, plan, sources, pace))

        def decide(state: LogState) -> LogChange | None:
            nonlocal has_landed
            has_landed = all(segment.name in state.segments for segment in merged)  # our commit, whose reply was lost
            if has_landed or any(segment.name not in state.segments for segment in sources):
                return None
            return new.offered(LogChange(adds=merged, removes=tuple(sources), data_change=False))

        cause = {"who": who, "why": "compact", "from": len(sources), "to": len(merged)}
        return len(sources) if log.transact(cause, decide) is not None or has_landed else 0


def _merge(log: ReplicaLog, plan: Compaction, sources: Sequence[Segment], pace: Pace) -> Iterator[Segment]:
    """Yields the new segments as it writes them; it reads every old one first."""
    rows: dict[tuple[str, BatchHeader], pa.Table] = {}
    for segment in sources:
        rows.update(((segment.name, header), part) for header, part in _batches(log, segment))
        pace(segment.file.size)
    for pack in plan.packs:
        headers = [header for _, header in pack]
        table = pa.concat_tables(rows.pop((file.name, header)) for file, header in pack)
        written = write_segment(log.root, None, table, headers)
        yield written
        pace(written.file.size)


def _batches(log: ReplicaLog, segment: Segment) -> Iterator[tuple[BatchHeader, pa.Table]]:
    """Each batch with its rows. The rows have the order of the headers, except in a file of another tool."""
    try:
        records = read_records(log.root, segment.name, use_threads=False).cast(LOG.arrow)
    except CorruptRecordException as error:
        report_unreadable(log, segment, error)
        raise
    start = 0
    for header in segment.headers:
        rows = records.slice(start, header.records)
        start += header.records
        if not _is_batch(header, rows):
            rows = rows_of(records, header.topic_id_partition, header.base_offset, header.next_offset)
        yield header, rows


def _is_batch(header: BatchHeader, rows: pa.Table) -> bool:
    ends = [(rows["topic_id"][n].as_py(), rows["partition"][n].as_py(), rows["offset"][n].as_py()) for n in (0, -1)]
    return ends == [(*header.topic_id_partition, o) for o in (header.base_offset, header.last_offset)]
