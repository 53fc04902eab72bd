"""Segments: footers, statistics, file options, and files that differ from their commit."""

import base64
import dataclasses
import datetime as dt
import json
import random
import re
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

from lakelog.replication.errors import CorruptRecordException
from lakelog.replication.protocol.chain import linked
from lakelog.replication.protocol.record_batch import BatchHeader, Retained
from lakelog.replication.storage.delta.commit import AddedFile
from lakelog.replication.storage.delta.data_file_name import leader_of, named_digest
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.replication.storage.log.segment import FOOTER_KEY, read_records, read_segment, statistics, write_segment
from lakelog.replication.storage.log.segment_copy import copy_segment
from lakelog.schemas import LOG
from tests.storage.logs import NOON, P0, P1, TOPIC, TOPIC_ID, fill, header, log_rows, new_log, offsets

FULL = linked(
    BatchHeader(TOPIC, TOPIC_ID, 0, 3, 5, 6, 1_767_268_800_001_000, 4, 77, 2, 2**31 - 1, "digest"), "before"
)  # fmt: skip
US = dt.timedelta(microseconds=1)


@pytest.fixture
def storage(root):
    return StorageRoot.of(root)


@pytest.fixture
def segment(storage):
    rows = pa.concat_tables([log_rows(P0, 5, 2, epoch=3), log_rows(P1, 0, 3)])
    return write_segment(storage, 4, rows, [FULL, header(P1, 0, 2)])


def test_the_headers_are_in_the_footer(storage, segment):
    assert read_segment(storage, AddedFile(segment.name, segment.file.size)) == segment
    assert read_segment(storage, segment.file).headers == (FULL, header(P1, 0, 2))


def test_what_headers_of_a_segment_have_in_common_is_in_memory_once(storage):
    """A log keeps all headers in memory, and most of their text is the same in each."""
    written = linked(dataclasses.replace(FULL, base_offset=7, last_offset=7, base_sequence=1), FULL.chain)
    segment = write_segment(storage, 4, log_rows(P0, 5, 3, epoch=3), [FULL, written])
    first, second = read_segment(storage, segment.file).headers
    assert second == written
    assert second.previous is first.chain
    assert second.topic is first.topic
    assert second.topic_id is first.topic_id


def test_the_statistics_are_in_the_footer_for_whoever_copies_the_file(storage, segment):
    read = read_segment(storage, AddedFile(segment.name, segment.file.size))
    assert read.file.stats == segment.file.stats == statistics(read_records(storage, segment.name))


def test_a_segment_is_zstd_with_page_index_and_short_offsets(storage, segment):
    file = pq.ParquetFile(storage.path(segment.name))
    columns = {column.path_in_schema: column for column in map(file.metadata.row_group(0).column, range(5))}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert columns["offset"].has_offset_index
    assert columns["offset"].has_column_index
    assert "DELTA_BINARY_PACKED" in columns["offset"].encodings
    assert "RLE_DICTIONARY" in columns["topic"].encodings
    assert file.schema_arrow.remove_metadata() == LOG.arrow


def test_statistics_have_all_four_parts_with_timestamps_in_ms_utc(segment):
    stats = json.loads(segment.file.stats)
    low = {"topic": TOPIC, "partition": 0, "offset": 0, "timestamp": "2026-01-01T12:00:00.000Z", "leader_epoch": 0}
    high = {"topic": TOPIC, "partition": 1, "offset": 6, "timestamp": "2026-01-01T12:00:00.002Z", "leader_epoch": 3}
    assert stats == {"numRecords": 5, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(low, 0)}


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (NOON + 1999 * US, "2026-01-01T12:00:00.001Z"),
        (NOON.astimezone(dt.timezone(dt.timedelta(hours=-5))), "2026-01-01T12:00:00.000Z"),
        (dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC), "1969-12-31T23:59:59.000Z"),
        (dt.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=dt.UTC), "1969-12-31T23:59:59.000Z"),
    ],
)
def test_a_timestamp_of_statistics(time, text):
    rows = pa.Table.from_pylist([{**log_rows().to_pylist()[0], "timestamp": time}], LOG.arrow)
    found = json.loads(statistics(rows))
    assert {found[name]["timestamp"] for name in ("minValues", "maxValues")} == {text}


def test_spark_reads_segments_and_skips_files_by_their_statistics(spark, root):
    """The file that Spark must skip is deleted, so opening it fails."""
    log = new_log(root, P0)
    fill(log, P0, 5, 5)
    first, second = log.current().segments
    frame = spark.read.format("delta").load(log.root.spark_uri)
    assert frame.where("offset >= 5").count() == 5
    log.root.delete(first)
    rows = frame.where("offset >= 5").select("offset", "value", "timestamp", "headers").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [(5 + n, b"%d" % n) for n in range(5)]
    assert second in log.current().segments


def of_another_tool(storage, rows):
    name = "from-another-tool.parquet"
    pq.write_table(rows.cast(LOG.arrow), storage.path(name))
    return AddedFile(name, storage.sizes([name])[0])


def of_an_older_format(storage, rows):
    name = "of-an-older-format.parquet"
    footer = json.dumps([dataclasses.astuple(header(P0, 2, 4))[:11]])
    metadata = {b"lakelog.batches.v1": footer.encode(), b"lakelog.statistics.v1": statistics(rows).encode()}
    pq.write_table(rows.cast(LOG.arrow).replace_schema_metadata(metadata), storage.path(name))
    return AddedFile(name, storage.sizes([name])[0])


_ODD = ("[" * 50_000, "[]", "{}", "null", "1e999", "-1", str(2**70), '"x"', "[[]]", "[{}]", "")


def test_a_footer_of_any_content_is_broken_or_read_and_raises_nothing_else(storage, segment):
    """Parts of the footer's text are replaced at random."""
    read = pq.read_metadata(storage.path(segment.name)).metadata
    rows, chance = read_records(storage, segment.name).cast(LOG.arrow), random.Random(4711)
    keys = [key for key in read if key.startswith(b"lakelog.")]
    for number in range(150):
        changed = {key: read[key].decode(errors="replace") for key in keys}
        key = chance.choice(keys)
        tokens = re.findall(r"[\[\]{}:,]|[^\[\]{}:,]+", changed[key])
        for place in chance.sample(range(len(tokens)), min(len(tokens), chance.choice((1, 1, 2)))):
            tokens[place] = chance.choice(_ODD)
        changed[key] = "".join(tokens)
        name = f"fuzzed-{number}.parquet"
        pq.write_table(rows.replace_schema_metadata(changed), storage.path(name))
        with suppress(CorruptRecordException):
            read_segment(storage, AddedFile(name, storage.sizes([name])[0]))


@pytest.mark.parametrize("write", [of_another_tool, of_an_older_format])
def test_a_file_without_our_footer_is_broken_whatever_its_rows_say(storage, write):
    """Without headers its rows belong to no chain."""
    file = write(storage, log_rows(P0, 2, 3))
    with pytest.raises(CorruptRecordException, match=rf"{storage.path(file.name)}: has no batch headers in its footer"):
        read_segment(storage, file)


def test_ol_01_a_file_without_our_footer_breaks_the_partitions_that_it_may_hold_and_no_others(root):
    log = new_log(root, P0, P1)
    fill(log, P0, 2)
    fill(log, P1, 2)
    file = dataclasses.replace(of_another_tool(log.root, log_rows(P0, 2, 3)), stats=statistics(log_rows(P0, 2, 3)))
    DeltaLog.open(log.root).commit({"why": "another tool"}, [file])
    for found in (log, ReplicaLog.open(log.root)):
        with pytest.raises(CorruptRecordException, match=rf"{file.name}: has no batch headers"):
            found.read(P0, 0)
        assert offsets(found, P1) == [0, 1]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(BatchHeader) if field.compare])
def test_tr_08_a_footer_one_of_whose_fields_was_changed_is_broken(storage, name):
    """Each header is checked by its own chain, which covers all its fields."""
    sound, value = header(P0, 0, 1), getattr(header(P0, 0, 1), name)
    forged = dataclasses.replace(sound, **{name: f"{value}x" if isinstance(value, str) else value + 1})
    rows = pa.concat_tables([log_rows(P0, 0, 2), log_rows(P1, 0, 1)])
    segment = write_segment(storage, 1, rows, [forged, header(P1, 0, 0)])
    with pytest.raises(CorruptRecordException, match=f"{segment.name}: .*does not have the chain of its header"):
        read_segment(storage, segment.file)


@pytest.mark.parametrize(
    ("records", "size", "digest", "horizon"),
    [(3, 0, "d", -1), (-1, 0, "d", -1), (True, 0, "d", -1), (1, 1, "d", -1), (1, -1, "d", -1), (1, 0, "", -1),
     (1, 0, None, -1), (1, 0, "d", -2), (1, 0, "d", None)],
)  # fmt: skip
def test_lc_01_a_footer_with_an_impossible_rest_of_a_batch_is_broken(storage, records, size, digest, horizon):
    forged = dataclasses.replace(header(P0, 0, 1), cleaned=Retained(records, size, digest, horizon))
    segment = write_segment(storage, 1, log_rows(P0, 0, max(0, min(2, records))), [forged])
    with pytest.raises(CorruptRecordException, match=f"{segment.name}: .*after cleaning"):
        read_segment(storage, segment.file)


@pytest.mark.parametrize("count", [0, 2])
def test_lc_01_a_footer_with_another_number_of_records_than_its_rows_is_broken(storage, count):
    forged = dataclasses.replace(header(P0, 0, 1), cleaned=Retained(1, 0, "d"))
    segment = write_segment(storage, 1, log_rows(P0, 0, count), [forged])
    with pytest.raises(CorruptRecordException, match=f"{segment.name}: .*describe 1 records, but it has {count} rows"):
        read_segment(storage, segment.file)


def deleted(path):
    path.unlink()


def truncated(path):
    path.write_bytes(path.read_bytes()[:-10])


def replaced(path):
    path.write_bytes(b"x" * path.stat().st_size)


def flipped(path):
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)


def foot_overwritten(path):
    content = path.read_bytes()
    path.write_bytes(content[:-40] + b"\xff" * 32 + content[-8:])


@pytest.mark.parametrize("harm", [deleted, truncated, replaced, foot_overwritten])
def test_a_file_that_was_deleted_or_changed_is_named(storage, segment, harm):
    harm(Path(storage.path(segment.name)))
    with pytest.raises(CorruptRecordException, match=segment.name):
        read_segment(storage, segment.file)


@pytest.mark.parametrize("harm", [deleted, replaced])
def test_rows_that_cannot_be_read_name_their_file(storage, segment, harm):
    harm(Path(storage.path(segment.name)))
    with pytest.raises(CorruptRecordException, match=segment.name):
        read_records(storage, segment.name)


def test_a_log_whose_file_was_deleted_names_it(root):
    log = new_log(root, P0)
    fill(log, P0, 2)
    (name,) = log.current().segments
    log.root.delete(name)
    with pytest.raises(CorruptRecordException, match=f"{name}: is gone"):
        ReplicaLog.open(log.root).read(P0, 0)
    with pytest.raises(CorruptRecordException, match=name):
        log.read(P0, 0)


@pytest.mark.parametrize("value", [None, b"", b"\x00\xff", b"x" * 100_000])
@pytest.mark.parametrize(
    "headers",
    [None, [], [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "", "value": b"\x00\xff"}]],
)
def test_values_and_headers_come_back_as_they_were(storage, value, headers):
    row = {**log_rows().to_pylist()[0], "key": value, "value": value, "headers": headers, "timestamp": NOON + US}
    segment = write_segment(storage, 1, pa.Table.from_pylist([row], LOG.arrow), [header()])
    assert read_records(storage, segment.name).to_pylist() == [row]


def test_a_bit_that_has_flipped_in_a_page_is_an_error(storage):
    """With incompressible rows, because otherwise the decompression fails first."""
    rows = log_rows(count=200)
    noise = pa.array([random.Random(n).randbytes(50) for n in range(200)], pa.binary())
    rows = rows.set_column(rows.schema.get_field_index("value"), LOG.arrow.field("value"), noise)
    segment = write_segment(storage, 1, rows, [header(last=199)])
    path = Path(storage.path(segment.name))
    content = path.read_bytes()
    position = content.index(noise[100].as_py()[:20]) if noise[100].as_py()[:20] in content else 2000
    path.write_bytes(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
    with pytest.raises(CorruptRecordException, match=segment.name):
        read_records(storage, segment.name)


@pytest.mark.parametrize("harm", [deleted, truncated, replaced, flipped])
def test_a_copy_has_the_bytes_that_were_committed_or_none_is_made(storage, segment, harm, tmp_path):
    target = StorageRoot.of(str(tmp_path / "target"))
    target.create_folder()
    copied = copy_segment(storage, segment, target)
    assert target.read(copied.name) == storage.read(segment.name)
    harm(Path(storage.path(segment.name)))
    with pytest.raises(CorruptRecordException, match=segment.name):
        copy_segment(storage, segment, target)
    assert target.list() == [copied.name]


def test_a_copy_has_a_name_of_its_own_that_tells_who_led(storage, segment):
    copied = copy_segment(storage, segment, storage)
    assert (copied.headers, copied.file.size, copied.file.stats) == (
        segment.headers,
        segment.file.size,
        segment.file.stats,
    )
    assert (leader_of(copied.name), named_digest(copied.name)) == (4, named_digest(segment.name))
    assert copied.name != segment.name


def test_a_footer_has_the_headers_once(storage, segment):
    """Metadata of Arrow's schema would be in the footer a second time, in base64."""
    metadata = pq.read_metadata(storage.path(segment.name)).metadata
    assert [key for key, value in metadata.items() if FULL.digest.encode() in value] == [FOOTER_KEY]
    assert not pa.ipc.read_schema(pa.py_buffer(base64.b64decode(metadata[b"ARROW:schema"]))).metadata


def test_the_name_has_the_digest_of_the_bytes(storage, segment):
    assert named_digest(segment.name) == blake3(storage.read(segment.name)).hexdigest()[:32]


@pytest.mark.parametrize("name", ["../flights.parquet", "..%2Fflights.parquet"])
def test_a_file_of_another_folder_is_not_opened(tmp_path, name):
    inner = StorageRoot.of(str(tmp_path / "log"))
    inner.create_folder()
    segment = write_segment(inner, 1, log_rows(), [header()])
    for place in (tmp_path / "flights.parquet", tmp_path / "log" / "..%2Fflights.parquet"):
        place.write_bytes(inner.read(segment.name))
    with pytest.raises(CorruptRecordException, match="is not the name of a file in this folder"):
        read_segment(inner, AddedFile(name, segment.file.size))
    with pytest.raises(CorruptRecordException, match="is not the name of a file in this folder"):
        read_records(inner, name)


def test_a_copy_goes_from_a_bucket_to_a_disk_and_back(storage, s3_options):
    bucket, segment = StorageRoot.of("s3://bucket/copy", s3_options), write_segment(storage, 1, log_rows(), [header()])
    there = copy_segment(storage, segment, bucket)
    back = copy_segment(bucket, there, storage)
    assert storage.read(back.name) == bucket.read(there.name) == storage.read(segment.name)
    assert read_segment(storage, back.file) == back
