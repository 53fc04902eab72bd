"""The records of partitions in a segment: which rows they are, which row groups are read, and broken files."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.replication.errors import CorruptRecordException, KafkaStorageException
from lakelog.replication.protocol.record_batch import OffsetRange
from lakelog.replication.storage.delta.object_root import ObjectRoot
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log import partition_rows, segment
from lakelog.replication.storage.log.partition_rows import (
    RowRange,
    SegmentFile,
    read_row_ranges,
    row_pieces,
    row_ranges,
)
from lakelog.replication.storage.log.segment import write_segment
from lakelog.schemas import LOG
from tests.storage.logs import P0, P1, P2, header, log_rows

HEADERS = [header(P0, 2, 4), header(P0, 5, 5), header(P0, 9, 9), header(P1, 0, 2)]  # 6 to 8 are in another segment
ROWS = pa.concat_tables([log_rows(P0, 2, 4), log_rows(P0, 9, 1), log_rows(P1, 0, 3)])


@pytest.fixture
def storage(root):
    return StorageRoot.of(root)


@pytest.fixture
def written(storage, monkeypatch):
    """Row groups of the rows 0 and 1, 2 to 4, 5 and 6, and 7."""
    monkeypatch.setattr(segment, "row_groups", lambda *_: [2, 3, 2, 1])
    return write_segment(storage, 1, ROWS, HEADERS)


def rows_in(root, segment, partition, start=0, stop=99):
    return row_ranges(root, segment, partition, OffsetRange(start, stop))


def break_row_group(root, segment, number):
    """Changes a byte of the values of a row group."""
    path = Path(root.path(segment.name))
    column = pq.read_metadata(path).row_group(number).column(LOG.names.index("value"))
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)


def read_rows(root, segment, ranges, *more):
    return read_row_ranges(SegmentFile.of(root, segment), ranges, *more)


RANGES = {
    (P0, 0, 99): [(2, 6, 0), (9, 10, 4)],
    (P0, 2, 6): [(2, 6, 0)],
    (P0, 3, 5): [(3, 5, 1)],
    (P0, 5, 10): [(5, 6, 3), (9, 10, 4)],
    (P0, 6, 9): [],
    (P0, 4, 4): [],
    (P1, 1, 2): [(1, 2, 6)],
    (P2, 0, 99): [],
}


@pytest.mark.parametrize("wanted", RANGES)
def test_the_rows_of_a_partition(storage, written, wanted):
    file = SegmentFile.of(storage, written)
    assert rows_in(storage, written, *wanted) == [
        RowRange(file, wanted[0], *found, found[1] - found[0]) for found in RANGES[wanted]
    ]


@pytest.mark.parametrize("wanted", RANGES)
def test_the_records_are_those_of_the_offsets(storage, written, wanted):
    ranges = rows_in(storage, written, *wanted)
    tables = read_rows(storage, written, ranges)
    assert [table["offset"].to_pylist() for table in tables] == [[*range(r.start, r.stop)] for r in ranges]
    expected = [row for row in ROWS.to_pylist() if row["partition"] == wanted[0].partition]
    offsets = {offset for r in ranges for offset in range(r.start, r.stop)}
    found = [row for table in tables for row in table.to_pylist()]
    assert found == [row for row in expected if row["offset"] in offsets]
    assert {table.schema for table in tables} <= {LOG.arrow}


def test_only_row_groups_with_wanted_rows_are_read(storage, written, monkeypatch):
    read, original = [], pq.ParquetFile.read_row_groups

    def noted(file, groups, **given):
        read.extend(groups)
        return original(file, groups, **given)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", noted)
    wanted = rows_in(storage, written, P1, 2, 3) + rows_in(storage, written, P0, 3, 4)
    tables = read_rows(storage, written, wanted)
    assert read == [0, 3]
    assert [table["offset"].to_pylist() for table in tables] == [[2], [3]]


@pytest.mark.parametrize("columns", [["offset", "value"], ["value"], ["headers", "key"]])
def test_only_the_columns_that_are_wanted_are_given(storage, written, columns):
    wanted = rows_in(storage, written, P0, 3, 4)
    (table,) = read_rows(storage, written, wanted, columns)
    assert table.column_names == columns
    (whole,) = read_rows(storage, written, wanted)
    assert table == whole.select(columns)


@pytest.mark.parametrize(("stop", "is_copied"), [(6, False), (3, True)])
def test_a_small_part_keeps_no_other_rows_in_memory(storage, stop, is_copied):
    written = write_segment(storage, 1, ROWS, HEADERS)
    (table,) = read_rows(storage, written, rows_in(storage, written, P0, 2, stop))
    assert table["offset"].to_pylist() == [*range(2, stop)]
    whole = pq.read_table(storage.path(written.name))
    held = {buffer.address: buffer.size for buffer in table["offset"].chunk(0).buffers() if buffer}
    assert (sum(held.values()) < whole["offset"].nbytes) == is_copied


@pytest.mark.parametrize("groups", [[8], [2, 3, 2, 1], [1] * 8], ids=str)
@pytest.mark.parametrize("right", [0, 2, 5], ids="the first {} rows are right".format)
def test_a_file_in_another_order_is_searched(storage, monkeypatch, groups, right):
    """As another tool may write it: the row numbers of the headers are then those of other records."""
    monkeypatch.setattr(segment, "row_groups", lambda *_: groups)
    for seed in range(20):
        others = [*range(right, ROWS.num_rows)]
        random.Random(seed).shuffle(others)
        order = [*range(right), *others]
        written = write_segment(storage, 1, ROWS.take(order), HEADERS)
        ranges = rows_in(storage, written, P0) + rows_in(storage, written, P1)
        tables = read_rows(storage, written, ranges)
        assert pa.concat_tables(tables).to_pylist() == ROWS.to_pylist()


@pytest.mark.parametrize("whole_bytes", [0, 1 << 20], ids=["by parts", "as a whole"])
def test_what_was_read_before_a_broken_row_group_is_given(storage, written, monkeypatch, whole_bytes):
    monkeypatch.setattr(partition_rows, "_WHOLE_BYTES", whole_bytes)
    break_row_group(storage, written, 1)
    ranges = rows_in(storage, written, P0) + rows_in(storage, written, P1)
    pieces = row_pieces(SegmentFile.of(storage, written), ranges, ["offset", "value"])
    number, part, rows = next(pieces)
    assert (number, part, rows["offset"].to_pylist()) == (0, ranges[0].part(2, 4), [2, 3])
    with pytest.raises(CorruptRecordException, match=written.name):
        next(pieces)


@pytest.mark.parametrize("whole_bytes", [0, 1 << 20], ids=["by parts", "as a whole"])
@pytest.mark.parametrize("damage", ["gone", "short", "changed"])
def test_a_broken_file_is_named(storage, written, monkeypatch, damage, whole_bytes):
    monkeypatch.setattr(partition_rows, "_WHOLE_BYTES", whole_bytes)
    path = Path(storage.path(written.name))
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage != "gone":
        content[200] ^= 1
        path.write_bytes(content if damage == "changed" else content[:100])
    with pytest.raises(CorruptRecordException, match=written.name):
        read_rows(storage, written, rows_in(storage, written, P0))


@pytest.mark.parametrize("whole_bytes", [0, 1 << 20], ids=["by parts", "as a whole"])
def test_from_an_object_store(s3_options, monkeypatch, whole_bytes):
    monkeypatch.setattr(partition_rows, "_WHOLE_BYTES", whole_bytes)
    monkeypatch.setattr(segment, "row_groups", lambda *_: [2, 3, 2, 1])
    bucket = StorageRoot.of("s3://bucket/rows", s3_options)
    written = write_segment(bucket, 1, ROWS, HEADERS)
    ranges = rows_in(bucket, written, P0, 3)
    parts = []
    monkeypatch.setattr(ObjectRoot, "open", lambda *args, open=ObjectRoot.open: parts.append(args) or open(*args))
    tables = read_rows(bucket, written, ranges)
    assert [table["offset"].to_pylist() for table in tables] == [[3, 4, 5], [9]]
    assert not parts, "half of the rows are wanted: one request"
    read, original = [], pq.ParquetFile.read_row_groups

    def noted(file, groups, **given):
        read.append(groups)
        return original(file, groups, **given)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", noted)
    few = [ranges[0].part(4, 5), rows_in(bucket, written, P1, 0)[0].part(2, 3)]
    assert [table["offset"].to_pylist() for table in read_rows(bucket, written, few)] == [[4], [2]]
    assert len(parts) == (whole_bytes == 0)
    assert read == ([[1, 3]] if parts else [[1], [3]]), "row groups are asked for at once"
    away = StorageRoot.of("s3://bucket/rows", {**s3_options, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, timeout_ms=50)
    with pytest.raises(KafkaStorageException):
        read_rows(away, written, ranges)
