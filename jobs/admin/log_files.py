"""The files of a broker's log as they are, one by one: a broken one is reported, and the others are read.

Kafka: `DumpLogSegments`.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.errors import KafkaStorageException, LakelogException
from lakelog.replication.protocol.partition_log import PlacedBatch
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.record_digest import record_digest
from lakelog.replication.storage.log.segment import (
    Segment,
    decoded,
    read_file,
    read_records,
    read_segment,
    record_bytes,
)
from lakelog.schemas import LOG

_READERS = 8
_ORDER = [(name, "ascending") for name in ("topic_id", "partition", "offset")]
_CONSTANT = ("topic", "topic_id", "partition", "leader_epoch")

# The errors of a file that is not as it should be: our own, those of a footer, those of columns.
_BROKEN = (LakelogException, OSError, ValueError, TypeError, KeyError, pa.ArrowException)


class Range(NamedTuple):
    """Offsets from `start` to before `stop`, None: without end."""

    start: int = 0
    stop: int | None = None

    def within(self, header: BatchHeader) -> tuple[int, int]:
        """The part of the range that is in the batch: empty where the second is not above the first."""
        stop = header.next_offset if self.stop is None else min(self.stop, header.next_offset)
        return max(self.start, header.base_offset), stop


class InspectedFile(NamedTuple):
    """A file of the log: the content of its footer, or why that cannot be read."""

    name: str
    segment: Segment | None
    fault: str | None


class LogRows(NamedTuple):
    """The rows of a file in order, or why they cannot be read; rows may have a `fault`, too."""

    records: pa.Table | None
    fault: str | None


def log_files(root: StorageRoot) -> list[InspectedFile]:
    """The files of the newest version of a log, in the order of what they hold; those that cannot be read come last.

    Raises InconsistentClusterIdException if no log is at `root`, KafkaStorageException if its commits cannot be read.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        files = list(pool.map(lambda file: _file(root, file), DeltaLog.open(root).active_files()))
    return sorted(files, key=_place)


def shares_of(segment: Segment) -> Mapping[TopicIdPartition, int]:
    """The bytes of a file, shared out by its batches' keys and values; a batch counts even if all of them are empty."""
    weights: dict[TopicIdPartition, int] = {}
    for header in segment.headers:
        weights[header.topic_id_partition] = weights.get(header.topic_id_partition, 0) + max(1, header.bytes)
    whole = sum(weights.values())
    return {partition: segment.file.size * weight // whole for partition, weight in weights.items()}


def _file(root: StorageRoot, file: AddedFile) -> InspectedFile:
    try:
        return InspectedFile(file.name, read_segment(root, file), None)
    except _BROKEN as error:
        return InspectedFile(file.name, None, _words(root, file.name, error))


def _place(file: InspectedFile) -> tuple[object, ...]:
    if file.segment is None:
        return 2, file.name
    places = [(header.topic, header.partition, header.base_offset) for header in file.segment.headers]
    return (0, *min(places), file.name) if places else (1, file.name)


def read_rows(root: StorageRoot, segment: Segment) -> LogRows:
    """The rows of a file, compared with its headers."""
    try:
        records = _in_order(read_records(root, segment.name))
        return LogRows(records, _fault(segment, records))
    except _BROKEN as error:
        return LogRows(None, _words(root, segment.name, error))


def content_fault(root: StorageRoot, segment: Segment) -> str | None:
    """Why the bytes of a file are not the committed ones; None if they are, or if its name has no digest. A changed
    byte may lie where no row is affected, for example in the header of a page."""
    try:
        read_file(root, segment.file)
    except _BROKEN as error:
        return _words(root, segment.name, error)
    return None


class FileCheck(NamedTuple):
    """The faults of a file: of its bytes, so that nothing in it counts, or of the rows of some batches."""

    fault: str | None = None
    batches: tuple[tuple[BatchHeader, str], ...] = ()


def check_file(root: StorageRoot, segment: Segment, with_rows: bool) -> FileCheck:
    """Reads a file once, and compares its bytes with those that were committed. `with_rows`: computes the digests of
    its batches anew, too. Raises KafkaStorageException if the store does not return the file."""
    try:
        content = read_file(root, segment.file)
        if not with_rows:
            return FileCheck()
        records = _in_order(decoded(content))
    except KafkaStorageException:
        raise
    except _BROKEN as error:
        return FileCheck(_words(root, segment.name, error))
    wrong, count = tuple(_wrong_batches(segment, records)), _row_count_fault(segment, records)
    return FileCheck(None if wrong else count, wrong)


def _in_order(records: pa.Table) -> pa.Table:
    return records.cast(LOG.arrow).sort_by(_ORDER)


def _fault(segment: Segment, records: pa.Table) -> str | None:
    """The first thing in which rows are not what the headers say."""
    for header, difference in _wrong_batches(segment, records):
        return f"{header.name}, batch of offsets {header.base_offset} to {header.last_offset}: {difference}"
    return _row_count_fault(segment, records)


def _row_count_fault(segment: Segment, records: pa.Table) -> str | None:
    rows, stated = records.num_rows, sum(header.retained.records for header in segment.headers)
    return None if rows == stated else f"{rows} rows, but its headers are of {stated} records"


def _wrong_batches(segment: Segment, records: pa.Table) -> Iterator[tuple[BatchHeader, str]]:
    """The batches whose rows are not what the headers say: where a row is missing, all that follow shift."""
    start = 0
    for header in sorted(segment.headers, key=lambda h: (h.topic_id, h.partition, h.base_offset)):
        count = header.retained.records
        if difference := next(_differences(header, records.slice(start, count)), None):
            yield header, difference
        start += count


def _differences(header: BatchHeader, rows: pa.Table) -> Iterator[str]:
    retained = header.retained
    if header.records < 1 or rows.num_rows < retained.records:
        yield f"{rows.num_rows} rows are left for it, its header says {retained.records}"
        return
    if header.cleaned:
        yield from _differences_after_cleaning(header, rows)
        return
    found = {name: pc.unique(rows[name]).to_pylist() for name in _CONSTANT}
    ends = pc.min_max(rows["offset"]).as_py()
    found["offsets"] = [ends["min"], ends["max"], pc.count_distinct(rows["offset"]).as_py()]
    found["max_timestamp"] = [pc.max(rows["timestamp"]).value]
    found["bytes"] = [pc.sum(record_bytes(rows)).as_py()]
    stated = {name: [getattr(header, name)] for name in (*_CONSTANT, "max_timestamp", "bytes")}
    stated["offsets"] = [header.base_offset, header.last_offset, header.records]
    found["digest"], stated["digest"] = [record_digest(rows)], [header.digest]
    different = [name for name in found if found[name] != stated[name]]
    yield from (f"{name} is {stated[name]} in its header, {found[name]} in its rows" for name in different)


def _differences_after_cleaning(header: BatchHeader, rows: pa.Table) -> Iterator[str]:
    """Of a batch without some of its records. Its header's largest timestamp may be that of a record that is gone."""
    partitions = {*zip(rows["topic_id"].to_pylist(), rows["partition"].to_pylist(), strict=True)}
    offsets = rows["offset"].to_pylist()
    if not partitions <= {header.topic_id_partition} or offsets != sorted({*offsets}):
        yield f"its rows are those of {sorted(partitions)}, at offsets that do not rise"
    elif offsets and not header.base_offset <= offsets[0] <= offsets[-1] <= header.last_offset:
        yield f"its rows have offsets {offsets[0]} to {offsets[-1]}"
    elif record_digest(rows) != header.retained.digest:
        yield f"digest is {header.retained.digest!r} in its header, {record_digest(rows)!r} in its rows"


def gaps(segments: Iterable[Segment]) -> Iterator[str]:
    """Where batches of different files do not follow each other: offsets without gaps, epochs that never go down, each
    linked to the one before."""
    batches: dict[TopicIdPartition, list[PlacedBatch]] = {}
    for segment in segments:
        for header in segment.headers:
            placed = PlacedBatch(header.base_offset, header, segment.name)
            batches.setdefault(header.topic_id_partition, []).append(placed)
    for partition in batches.values():
        for before, after in pairwise(sorted(partition, key=lambda batch: batch.base_offset)):
            yield from _gap(before, after)


def _gap(before: PlacedBatch, after: PlacedBatch) -> Iterator[str]:
    first, second = before.header, after.header
    name = first.name
    if second.base_offset != first.next_offset:
        yield (
            f"{name}: {after.segment} begins at offset {second.base_offset}, "
            f"but {before.segment} ends before {first.next_offset}"
        )
    elif second.leader_epoch < first.leader_epoch:
        yield (
            f"{name}: {after.segment} is of leader epoch {second.leader_epoch} at offset {second.base_offset}, "
            f"{before.segment} of epoch {first.leader_epoch} before it"
        )
    elif second.previous != first.chain:
        yield (
            f"{name}: {after.segment} does not follow {before.segment} at offset {second.base_offset}: "
            f"it was written after chain {second.previous}, not {first.chain}"
        )


def _words(root: StorageRoot, name: str, error: BaseException) -> str:
    """Without the name of the file, which stands before it wherever it is shown."""
    words = str(error).removeprefix(f"{root.path(name)}: ")
    return words if isinstance(error, LakelogException) else f"{type(error).__name__}: {words}"
