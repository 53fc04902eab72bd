"""Batches that tasks have encoded before their offsets were known, beside those of the same records in memory."""

from functools import partial
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.replication.clients.records import to_records
from lakelog.replication.errors import CorruptRecordException, DuplicateSequenceException
from lakelog.replication.protocol.append import AppendPosition
from lakelog.replication.storage.log import encoded_batches
from lakelog.replication.storage.log.encoded_batches import EncodedRecords, encode_batches, encoded_records
from lakelog.replication.storage.log.log_append import append
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.new_batches import ArrowRecords, batches_of, digests_of, write_batches
from lakelog.replication.storage.log.record_digest import check_digest
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import read_records, read_segment
from lakelog.schemas import LOG
from tests.storage.logs import P0, P1, TOPIC, facts, leo, new_log, records, request, send

SEGMENT = 1 << 30


def noise(seed, count, size=50):
    random = Random(seed)
    return records(*(random.randbytes(size) for _ in range(count)))


def encoded(*parts):
    """Records of partitions as tasks encode them."""
    content, batches = encode_batches([(TOPIC, partition.partition, table) for partition, table in parts])
    return [records for _, records in encoded_records(content, batches, "part")]


def sent(log, given, segment_bytes=SEGMENT):
    requests = [request(p, sum(each.num_rows for each in parts), leo(log, p)) for p, parts in given.items()]
    writer = partial(write_batches, log.root, 1, requests, given, segment_bytes)
    return append(log, requests, writer, lambda p, parts: digests_of(given[p], parts), "test")


@pytest.fixture
def log(root):
    log = new_log(root, P0, P1)
    send(log, request(P0, 3, 0))
    return log


def test_ap_06_batches_that_were_encoded_are_compared_when_they_are_sent_again(log):
    tables = [noise(1, 2000), noise(2, 10)]
    start = leo(log, P0)
    sent(log, {P0: encoded(*((P0, table) for table in tables))})
    count = sum(table.num_rows for table in tables)
    again = request(P0, count, start)

    def outcome(*given):
        writer = partial(write_batches, log.root, 1, [again], {P0: given}, SEGMENT)
        return append(log, [again], writer, lambda _, parts: digests_of(given, parts), "test")[P0]

    assert outcome(*encoded(*((P0, table) for table in tables))).duplicate
    assert outcome(*encoded((P0, pa.concat_tables(tables)))).duplicate
    assert outcome(*encoded((P0, tables[0])), ArrowRecords(tables[1])).duplicate
    other = outcome(*encoded((P0, tables[0]), (P0, noise(3, 10))))
    assert isinstance(other, DuplicateSequenceException)
    assert leo(log, P0) == start + count


def test_batches_of_tasks_and_of_the_driver_give_one_log(log, tmp_path):
    tables = {P0: [noise(1, 2000), noise(2, 10)], P1: [noise(3, 30_000, 200)]}
    twin = new_log(str(tmp_path / "twin"), P0, P1)
    send(twin, request(P0, 3, 0))
    sent(twin, {p: [ArrowRecords(table) for table in each] for p, each in tables.items()})
    sent(log, {p: encoded(*((p, table) for table in each)) for p, each in tables.items()})
    for p in (P0, P1):
        assert log.read(p, 0).equals(twin.read(p, 0))
        headers = [[batch.header for batch in each.refresh().partition(p).batches] for each in (log, twin)]
        assert headers[0] == headers[1]
        assert log.current().partition(p).producers == twin.current().partition(p).producers
    assert facts(ReplicaLog.open(log.root)) == facts(log)


def test_columns_of_encoded_batches_are_copied_and_the_others_follow_from_their_headers(log, monkeypatch):
    """So the driver decodes only timestamps, for the statistics."""
    given = encoded((P0, noise(1, 30_000, 200)), (P1, noise(2, 100)))
    decoded, original = [], encoded_batches.decoded
    monkeypatch.setattr(
        encoded_batches, "decoded", lambda *arguments: decoded.append(arguments[2:]) or original(*arguments)
    )
    sent(log, {P0: given[:1], P1: given[1:]})
    assert decoded == [(["timestamp"],)] * 2
    (name,) = (name for name, segment in log.current().segments.items() if len(segment.headers) == 2)
    segment = log.current().segments[name]
    assert read_segment(log.root, segment.file) == segment
    rows, start = read_records(log.root, name), 0
    for header in segment.headers:
        check_digest(header, rows.slice(start, header.records), name)
        start += header.records
    assert rows["offset"].to_pylist() == [*range(3, 30_003), *range(100)]
    footer = pq.read_metadata(pa.BufferReader(log.root.read(name)))
    assert [footer.row_group(n).num_rows for n in (0, 1, 2)] == [15_000, 15_000, 100]


@pytest.mark.parametrize("is_first", [True, False])
def test_an_encoded_batch_and_one_in_memory_share_a_segment(log, is_first):
    """A task encodes a partition with many records, and leaves one with few as they are."""
    large, small = encoded((P0, noise(1, 30_000, 200))), [ArrowRecords(noise(2, 3))]
    sent(log, {P0: large, P1: small} if is_first else {P0: small, P1: large})
    (segment,) = (each for each in log.current().segments.values() if len(each.headers) == 2)
    assert read_segment(log.root, segment.file) == segment
    assert [log.read(p, leo(log, p) - 3).num_rows for p in (P0, P1)] == [3, 3]


def test_spark_reads_encoded_batches(spark, log):
    rows = noise(1, 30_000, 200)
    sent(log, {P0: encoded((P0, rows))})
    found = spark.read.format("delta").load(log.root.uri).where("offset between 20000 and 20009 and partition = 0")
    assert (
        found.orderBy("offset").select("value").toArrow()["value"].to_pylist()
        == rows["value"][19_997:20_007].to_pylist()
    )


@pytest.mark.parametrize("known", [0, 1, 9, 10, 11, 29, 30])
def test_records_that_the_log_has_already_are_left_out(known):
    """A new leader may have replicated only the first of them."""
    given = [*encoded((P0, noise(1, 10))), ArrowRecords(noise(2, 10)), *encoded((P0, noise(3, 10)))]
    values = [value for each in given for value in each.table["value"].to_pylist()]
    found = list(batches_of(request(P0, 30, 100), given, AppendPosition(100 + known, known, "00"), SEGMENT))
    assert [value for _, batch in found for value in batch.table["value"].to_pylist()] == values[known:]
    offsets = [(header.base_offset, header.last_offset) for header, _ in found]
    ends = [100 + known, *(last + 1 for _, last in offsets)]
    assert [base for base, _ in offsets] == ends[:-1]
    assert ends[-1] == 130
    assert [header.base_sequence for header, _ in found] == [base for base, _ in offsets]
    chunks = [(0, True), (10, False), (20, True)]
    is_copied = [is_encoded and known <= first for first, is_encoded in chunks if known < first + 10]
    assert [isinstance(batch, EncodedRecords) for _, batch in found] == is_copied


def test_large_encoded_batches_fill_several_segments(log):
    given = encoded(*((P0, noise(seed, 100, 1000)) for seed in range(6)))
    sent(log, {P0: given}, segment_bytes=250_000)
    assert sorted(len(segment.headers) for segment in log.current().segments.values()) == [1, 2, 2, 2]


def test_a_batch_that_is_larger_than_a_segment_is_decoded_and_split(log):
    """The topic's segments are smaller than what a task encodes."""
    rows = noise(1, 1000, 1000)
    sent(log, {P0: encoded((P0, rows))}, segment_bytes=250_000)
    assert sorted(len(segment.headers) for segment in log.current().segments.values()) == [1] * 6
    assert log.read(P0, 3)["value"].to_pylist() == rows["value"].to_pylist()


def test_bytes_of_headers_count_too(log):
    headers = [[{"key": "h", "value": Random(n).randbytes(1000)}] for n in range(100)]
    rows = noise(1, 100, 0).set_column(3, "headers", pa.array(headers, LOG.arrow.field("headers").type))
    sent(log, {P0: encoded(*((P0, rows),) * 6)}, segment_bytes=250_000)
    assert sorted(len(segment.headers) for segment in log.current().segments.values()) == [1, 2, 2, 2]


def test_encoded_batches_are_compacted(log):
    for seed in range(5):
        sent(log, {P0: encoded((P0, noise(seed, 20_000, 100))), P1: encoded((P1, noise(seed, 10)))})
    before = [log.read(p, 0) for p in (P0, P1)]
    assert compact(log, SEGMENT, 3, SEGMENT, "test")
    assert [log.read(p, 0).equals(rows) for p, rows in zip((P0, P1), before, strict=True)] == [True, True]


def test_batches_of_a_version_with_other_columns_are_decoded(monkeypatch):
    rows = noise(1, 10)
    monkeypatch.setattr(encoded_batches, "_schema", lambda: "another")
    (given,) = encoded((P0, rows))
    assert isinstance(given, ArrowRecords)
    assert given.table.to_pylist() == rows.select(given.table.column_names).to_pylist()
    assert given.table.schema == to_records(rows).schema, "so it can be one batch with others"


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda content, batches: (content[:-1], batches), "is not Parquet"),
        (lambda content, batches: (content, batches * 2), "lacks records of"),
    ],
)
def test_a_file_without_its_batches_is_named(spoil, text):
    content, batches = encode_batches([(TOPIC, 0, noise(1, 10))])
    with pytest.raises(CorruptRecordException, match=f"a-part: {text}"):
        encoded_records(*spoil(content, batches), "a-part")
