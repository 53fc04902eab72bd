"""A segment: one Parquet file of records, with the headers of its record batches in the footer.

Rows are sorted by (topic, partition, offset). Followers stream the footer. The statistics go into the commit, where
Spark uses them to skip files.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.log_validator import validate_headers
from lakelog.replication.protocol.record_batch import BatchHeader, Retained, TopicIdPartition
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.commit_format import inlined
from lakelog.replication.storage.delta.data_file_name import (
    digest_of,
    is_data_file,
    is_snapshot,
    named_digest,
    segment_name,
    snapshot_name,
)
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.producer_snapshot import RememberedProducer, from_footer, to_footer
from lakelog.schemas import LOG

FOOTER_KEY = b"lakelog.batches.v2"
STATISTICS_KEY = b"lakelog.statistics.v1"  # with them a follower commits its copy of the file without reading rows
# The errors of parsing JSON that is malformed, too deep, too large, or of another shape.
_NOT_A_FOOTER = ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError
STATS_COLUMNS = ("topic", "partition", "offset", "timestamp", "leader_epoch")
# The bytes of keys and values in a row group.
LEAST_BYTES = 1 << 20
_MOST_BYTES = 4 << 20
_DICTIONARY = ["topic", "partition", "topic_id", "leader_epoch", "timestampType"]
_ENCODING = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as a log knows it: its file and the headers of its batches, in the order of its rows. A producer
    snapshot has `producers` instead of rows and headers.
    """

    file: AddedFile
    headers: tuple[BatchHeader, ...]
    producers: tuple[RememberedProducer, ...] = ()

    @property
    def name(self) -> str:
        """Name of the data file, relative to the log table."""
        return self.file.name

    @property
    def light(self) -> Segment:
        """The segment without the content of its file, which its log need not keep in memory."""
        return self if self.file.content is None else dataclasses.replace(self, file=self.file.light)


def write_segment(root: StorageRoot, leader: int | None, records: pa.Table, headers: Sequence[BatchHeader]) -> Segment:
    """Writes records (columns of `schemas.LOG`), in the order of `headers`, into a new file; it commits nothing."""
    stats = statistics(records, headers)
    groups = row_groups([header.retained for header in headers], records.num_rows)
    content = encoded(records.cast(LOG.arrow), groups, footer_metadata(headers, stats))
    return Segment(write_file(root, partial(segment_name, leader), content, stats), tuple(headers))


def write_snapshot(root: StorageRoot, producers: Sequence[RememberedProducer]) -> Segment:
    """Writes producer state into a new file of the log at `root`; it commits nothing."""
    stats = json.dumps({"numRecords": 0})
    metadata = footer_metadata((), stats) | to_footer(producers)
    content = encoded(LOG.arrow.empty_table(), [], metadata)
    return Segment(write_file(root, snapshot_name, content, stats), (), tuple(producers))


def footer_metadata(headers: Sequence[BatchHeader], stats: str) -> dict[bytes, bytes]:
    """The metadata in the footer of a segment."""
    fields = [dataclasses.astuple(header) for header in headers]
    # The last field is only there if the log cleaner has removed records: older versions refuse such a segment, instead
    # of looking for these records.
    values = [each if header.cleaned else each[:-1] for header, each in zip(headers, fields, strict=True)]
    return {FOOTER_KEY: json.dumps(values, separators=(",", ":")).encode(), STATISTICS_KEY: stats.encode()}


class SizedBatch(Protocol):
    """A batch of which the number of records and the bytes of their keys and values are known."""

    @property
    def records(self) -> int:
        """Number of records."""

    @property
    def bytes(self) -> int:
        """Bytes of keys and values."""


def row_groups(batches: Sequence[SizedBatch], total: int) -> list[int]:
    """The number of rows of each row group, for batches in this order that have `total` rows.

    A row group ends with a batch once it has 1 MiB of keys and values, so that a partition with many records shares it
    with few others. A larger one is split into equal parts of at most 4 MiB: a reader of one partition, or of the last
    records of a log, reads only those with its records. With row groups of 1 MB a segment would take a sixth more time
    to write and to read.
    """
    groups, rows, size = list[int](), 0, 0
    for batch in batches:
        if rows and size + batch.bytes > _MOST_BYTES:
            groups += _split(rows, size)
            rows = size = 0
        rows, size = rows + batch.records, size + batch.bytes
        if size >= LEAST_BYTES:
            groups += _split(rows, size)
            rows = size = 0
    return groups + _split(total - sum(groups), size)


def _split(rows: int, size: int) -> list[int]:
    parts = min(rows, max(1, -(-size // _MOST_BYTES)))
    return [rows * (n + 1) // parts - rows * n // parts for n in range(parts)]


def encoded(table: pa.Table, row_counts: Sequence[int], metadata: Mapping[bytes, bytes]) -> pa.Buffer:
    """The content of a Parquet file with these rows, in columns of `schemas.LOG`. `row_counts`: the rows of each row
    group. `metadata`: keys and values of its footer."""
    names = table.column_names
    content, start = pa.BufferOutputStream(), 0
    with pq.ParquetWriter(
        content, table.schema, compression="zstd", compression_level=1,
        use_dictionary=[name for name in _DICTIONARY if name in names],
        column_encoding={name: encoding for name, encoding in _ENCODING.items() if name in names},
        write_page_index=True, write_page_checksum=True,
    ) as writer:  # fmt: skip
        for rows in row_counts:
            writer.write_table(table.slice(start, rows), rows)
            start += rows
        writer.add_key_value_metadata(dict(metadata))  # in the schema it would be in the footer twice
    return content.getvalue()


def decoded(content: pa.Buffer, indices: range | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of some row groups, or of all, with each page's checksum verified. It uses one core only, because
    producers and followers must not feel this work. Raises OSError, and pyarrow's errors, which are ValueErrors."""
    file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
    chosen = range(file.num_row_groups) if indices is None else indices
    return file.read_row_groups(list(chosen), columns, use_threads=False)


def write_file(root: StorageRoot, name_of: Callable[[str], str], content: pa.Buffer, stats: str) -> AddedFile:
    """Writes a new file. Its name has the digest of its bytes."""
    name = name_of(digest_of(content))
    root.put(name, content)
    return AddedFile(name, content.size, stats, content=None if root.is_local else inlined(content))


def read_file(root: StorageRoot, file: AddedFile) -> pa.Buffer:
    """The bytes of a file. Raises CorruptRecordException, naming it, if they are not the committed ones."""
    try:
        content = pa.py_buffer(file.content) if file.content else root.read_buffer(file.name)
    except FileNotFoundError as error:
        raise CorruptRecordException(f"{root.path(file.name)}: is gone") from error
    digest = named_digest(file.name)
    if content.size != file.size or digest not in (None, digest_of(content)):
        raise CorruptRecordException(
            f"{root.path(file.name)}: its {content.size} bytes are not the {file.size} bytes that were committed"
        )
    return content


def size_fault(root: StorageRoot, file: AddedFile, size: int | None) -> str | None:
    """The fault of a file of this size, in bytes; None if its commit has the same size."""
    if size == file.size:
        return None
    found = "is gone" if size is None else f"has {size} bytes"
    return f"{root.path(file.name)}: {found}, its commit says {file.size} bytes"


def read_segment(root: StorageRoot, file: AddedFile) -> Segment:
    """The headers of a committed segment, from its footer.

    Raises CorruptRecordException, naming the file, if its name has a path, or if the file is missing, has another size
    than its commit says, is not Parquet, was written by another tool, or has an invalid footer. Raises
    KafkaStorageException if the store does not return the file now.
    """
    _check_name(root, file.name)
    try:
        with pa.BufferReader(file.content) if file.content else root.open(file.name, file.size) as source:
            if source.size() != file.size:
                raise OSError("has another size")
            footer = pq.read_metadata(source)
    except (OSError, pa.ArrowException) as error:
        root.check_is_handed_out(file.name)
        fault = size_fault(root, file, root.sizes([file.name])[0])
        raise CorruptRecordException(fault or f"{root.path(file.name)}: {error}") from error
    if FOOTER_KEY not in (footer.metadata or {}):
        raise CorruptRecordException(f"{root.path(file.name)}: has no batch headers in its footer: it is not a segment")
    try:
        return _segment_of(file, footer.metadata, footer.num_rows)
    except (*_NOT_A_FOOTER, CorruptRecordException) as error:
        raise CorruptRecordException(f"{root.path(file.name)}: its footer cannot be read: {error!r}") from error


def _segment_of(file: AddedFile, metadata: Mapping[bytes, bytes], rows: int) -> Segment:
    headers = _headers(metadata[FOOTER_KEY])
    known = dataclasses.replace(file, stats=metadata[STATISTICS_KEY].decode(), data_change=True)
    check_footer(headers, known.stats, rows)
    if not is_snapshot(file.name):
        return Segment(known, headers)
    if headers:
        raise CorruptRecordException("its name says that it has no records, and it has some")
    return Segment(known, (), from_footer(metadata))


def _headers(content: bytes) -> tuple[BatchHeader, ...]:
    """The headers in a footer. A log keeps all its headers in memory, so equal values share one object: topic,
    producer, and the chain before a batch, which is the chain of another batch."""
    shared: dict[Any, Any] = {}
    found = []
    for values in json.loads(content):
        cleaned = Retained(*values[-1]) if isinstance(values[-1], list) else None
        plain = values[:-1] if cleaned else values
        header = BatchHeader(*(shared.setdefault(v, v) for v in plain))
        found.append(dataclasses.replace(header, cleaned=cleaned) if cleaned else header)
    return tuple(found)


def _check_name(root: StorageRoot, name: str) -> None:
    if not is_data_file(name):
        raise CorruptRecordException(
            f"{root.uri}: a commit names {name!r}, which is not the name of a file in this folder"
        )


def read_records(root: StorageRoot, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a segment (columns of `schemas.LOG`, or `columns`), with each page's checksum verified.

    Raises CorruptRecordException, naming the file, and KafkaStorageException if the store does not return the file.
    """
    _check_name(root, name)
    try:
        source = pa.BufferReader(root.read_buffer(name)) if columns is None else root.open(name)
        return pq.read_table(source, columns=columns, page_checksum_verification=True)
    except (OSError, pa.ArrowInvalid) as error:
        root.check_is_handed_out(name)
        raise CorruptRecordException(f"{root.path(name)}: {error}") from error


def rows_of(records: pa.Table, partition: TopicIdPartition, start: int, stop: int | None = None) -> pa.Table:
    """The rows of one partition from offset `start` to before `stop`, with the columns of `schemas.LOG`."""
    wanted = pc.and_(
        pc.equal(records["topic_id"], partition.topic_id), pc.equal(records["partition"], partition.partition)
    )
    wanted = pc.and_(wanted, pc.greater_equal(records["offset"], start))
    if stop is not None:
        wanted = pc.and_(wanted, pc.less(records["offset"], stop))
    return records.filter(wanted).cast(LOG.arrow)


def record_bytes(records: pa.Table) -> pa.ChunkedArray:
    """The size of each record's key and value, in bytes."""
    lengths = [pc.fill_null(pc.binary_length(records.column(name)), 0) for name in ("key", "value")]
    return pc.cast(pc.add(*lengths), pa.int64())


def statistics(records: pa.Table, headers: Sequence[BatchHeader] = ()) -> str:
    """Delta's statistics of a data file, as JSON. Spark skips no file that lacks one of the four parts, or the null
    count of a column with a range.

    A column has no range if the log cleaner has removed its least or greatest value. Spark answers `min` and `max` by
    ranges, so none may be too wide. By ranges, too, a follower finds the files with the batch headers that it lacks, so
    none may be too narrow.
    """
    ranges = {name: pc.min_max(records.column(name)) for name in STATS_COLUMNS}
    least = {name: _stat(value["min"]) for name, value in ranges.items()}
    most = {name: _stat(value["max"]) for name, value in ranges.items()}
    of_headers = _ranges(headers) if any(header.cleaned for header in headers) else {}
    whole = {name: of_headers.get(name, (least[name], most[name])) for name in STATS_COLUMNS if records.num_rows}
    known = [name for name, ends in whole.items() if ends == (least[name], most[name])]
    return json.dumps(
        {
            "numRecords": records.num_rows,
            "minValues": {name: least[name] for name in known},
            "maxValues": {name: most[name] for name in known},
            "nullCount": {name: records.column(name).null_count for name in STATS_COLUMNS},
        }
    )


def _stat(value: pa.Scalar) -> object:
    """The minimum or maximum of a column in Delta's format: a timestamp is in UTC, rounded down to the millisecond.
    Readers know that a maximum is rounded."""
    if pa.types.is_timestamp(value.type):
        rounded = pc.floor_temporal(value, unit="millisecond")  # a cast rounds up before 1970
        return pc.strftime(pc.cast(rounded, pa.timestamp("ms", tz="UTC")), "%Y-%m-%dT%H:%M:%SZ").as_py()
    return value.as_py()


def check_footer(headers: Sequence[BatchHeader], stats: str, rows: int) -> None:
    """Raises CorruptRecordException or ValueError unless the headers are possible and the statistics match them.
    Readers skip files by statistics, so a wrong range would hide records."""
    validate_headers(headers, rows)
    given = json.loads(stats)
    if given["numRecords"] != rows:
        raise ValueError(f"its statistics count {given['numRecords']} records, but it has {rows} rows")
    if not headers:
        return
    least, most = given["minValues"], given["maxValues"]
    may_lack = any(header.cleaned for header in headers)
    for name, true in _ranges(headers).items():
        if (name in least or name in most or not may_lack) and (least[name], most[name]) != true:
            raise ValueError(
                f"its statistics have {name} from {least[name]!r} to {most[name]!r}, its headers {true[0]!r} to "
                f"{true[1]!r}"
            )


def _ranges(headers: Sequence[BatchHeader]) -> dict[str, tuple[Any, Any]]:
    """The least and greatest value of each column that headers have."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in ("topic", "partition", "leader_epoch"):
        values = [getattr(header, name) for header in headers]
        found[name] = min(values), max(values)
    found["offset"] = min(header.base_offset for header in headers), max(header.last_offset for header in headers)
    return found
