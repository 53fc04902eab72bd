"""Records of several partitions from several segments, in the order of offsets."""

import pyarrow as pa
import pytest

from lakelog.replication.clients import consumer_fetch
from lakelog.replication.clients.consumer_fetch import read_rows
from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.record_batch import OffsetRange
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.partition_rows import row_ranges
from lakelog.replication.storage.log.segment import write_segment
from tests.storage.logs import P0, P1, header, log_rows


@pytest.fixture
def storage(root):
    return StorageRoot.of(root)


@pytest.fixture
def segments(storage):
    """The first has flights-0 0 to 1 and 4, and flights-1 0; the second has flights-0 2 to 3."""
    first = pa.concat_tables([log_rows(P0, 0, 2), log_rows(P0, 4, 1), log_rows(P1, 0, 1)])
    headers = [header(P0, 0, 1), header(P0, 4, 4), header(P1, 0, 0)]
    return [
        write_segment(storage, None, first, headers),
        write_segment(storage, 1, log_rows(P0, 2, 2), [header(P0, 2, 3)]),
    ]


def wanted(storage, segments, partition, start, stop):
    return [rows for each in segments for rows in row_ranges(storage, each, partition, OffsetRange(start, stop))]


def offsets(rows):
    return rows if isinstance(rows, CorruptRecordException) else rows["offset"].to_pylist()


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (1, 4), (2, 5), (3, 3)])
def test_records_that_interleave_in_two_segments_are_returned_in_the_order_of_offsets(storage, segments, start, stop):
    read = read_rows({0: wanted(storage, segments, P0, start, stop), 1: wanted(storage, segments[:1], P1, 0, 1)})
    assert {key: offsets(rows) for key, rows in read.items()} == {0: [*range(start, stop)], 1: [0]}


def test_a_segment_with_rows_of_several_partitions_is_read_once(storage, segments, monkeypatch):
    read, original = [], consumer_fetch.read_row_ranges
    monkeypatch.setattr(
        consumer_fetch, "read_row_ranges", lambda file, ranges: read.append(file.name) or original(file, ranges)
    )
    read_rows({0: wanted(storage, segments, P0, 0, 5), 1: wanted(storage, segments[:1], P1, 0, 1)})
    assert sorted(read) == sorted(segment.name for segment in segments)


def test_a_broken_segment_fails_only_the_partitions_with_rows_in_it(storage, segments):
    storage.delete(segments[1].name)
    read = read_rows({0: wanted(storage, segments, P0, 0, 5), 1: wanted(storage, segments[:1], P1, 0, 1)})
    assert isinstance(read[0], CorruptRecordException)
    assert segments[1].name in str(read[0])
    assert offsets(read[1]) == [0]
    assert offsets(read_rows({0: wanted(storage, segments, P0, 0, 2)})[0]) == [0, 1], "nothing of it is wanted"
