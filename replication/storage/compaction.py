"""Putting small segments together: the same batches, in files of one partition, in one commit that changes no data.

Whoever follows, reads or tails the log has nothing to do: offsets, batches and rows are what they were. Files are
written before the log is asked, so that nobody waits for them; if an old one has gone by then, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from replication.errors import CorruptRecordException
from replication.protocol.compaction import LogFile, plan_compaction, size_class
from replication.protocol.record_batch import BatchHeader, TopicIdPartition
from replication.storage.append import Batch, packs_of
from replication.storage.log_state import LogState
from replication.storage.replica_log import LogChange, ReplicaLog
from replication.storage.segment import Segment, read_records, rows_of, write_segment
from schemas import LOG


def compact(log: ReplicaLog, segment_bytes: int, min_files: int, max_bytes: int, who: str) -> int:
    """Merges the small files that are worth it, once; returns how many it has replaced.

    Raises CorruptRecordException, naming the file, if one cannot be read, and KafkaStorageException.
    """
    state = log.refresh()
    segments = {name: segment for name, segment in state.segments.items() if name not in state.broken}
    small = [s for s in segments.values() if s.headers and size_class(s.file.size, segment_bytes) >= 0]
    enough = len(small) >= min_files
    plan = plan_compaction([_file_of(s) for s in small], segment_bytes, min_files, max_bytes) if enough else ()
    if not plan:
        return 0
    sources = [segments[file.name] for file in plan]
    merged = tuple(_merge(log, sources, segment_bytes))
    has_landed = False

    def decide(state: LogState) -> LogChange | None:
        nonlocal has_landed
        has_landed = all(segment.name in state.segments for segment in merged)  # a commit whose answer was lost
        if has_landed or any(segment.name not in state.segments for segment in sources):
            return None
        return LogChange(adds=merged, removes=tuple(sources), data_change=False)

    cause = {"who": who, "why": "compact", "from": len(sources), "to": len(merged)}
    if log.transact(cause, decide) is not None or has_landed:
        return len(sources)
    for segment in merged:
        log.root.delete(segment.name)
    return 0


def _file_of(segment: Segment) -> LogFile:
    shares: dict[TopicIdPartition, int] = {}
    for header in segment.headers:
        shares[header.topic_id_partition] = shares.get(header.topic_id_partition, 0) + max(1, header.bytes)
    return LogFile(segment.name, segment.file.size, shares)


def _merge(log: ReplicaLog, sources: Sequence[Segment], segment_bytes: int) -> Iterator[Segment]:
    """New segments, each of one partition and of a segment's size at most, unless one batch is larger."""
    batches: dict[TopicIdPartition, list[Batch]] = {}
    for segment in sources:
        for header, rows in _batches(log, segment):
            batches.setdefault(header.topic_id_partition, []).append((header, rows))
    for partition in sorted(batches):
        for pack in packs_of(sorted(batches[partition], key=lambda batch: batch[0].base_offset), segment_bytes):
            table = pa.concat_tables(rows for _, rows in pack)
            yield write_segment(log.root, None, table, [header for header, _ in pack])


def _batches(log: ReplicaLog, segment: Segment) -> Iterator[Batch]:
    """Each batch with its rows: they lie in the order of the headers, but in a file that another tool has written."""
    try:
        records = read_records(log.root, segment.name).cast(LOG.arrow)
    except CorruptRecordException as error:
        log.report_broken(segment.name, str(error))
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
