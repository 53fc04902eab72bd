"""Readers of a topic whose log was cleaned get the records that are left, from any offset, each once; and what such a
topic takes."""

import datetime as dt
from argparse import Namespace

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from lakelog.jobs.admin.group_offsets import lag_of
from lakelog.jobs.console.console_reader import ConsoleReader
from lakelog.jobs.console.record_range import range_of
from lakelog.replication.clients import offset_lookup
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.offset_lookup import EARLIEST, MAX_TIMESTAMP, offset_for
from lakelog.replication.clients.partition_reader import PartitionReader
from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.reader import LogRead, read_committed, read_latest, segment_records
from lakelog.replication.clients.record_limit import RecordLimit
from lakelog.replication.clients.sink.sink_options import parse_sink_options
from lakelog.replication.clients.sink.topic_writer import TopicWriter
from lakelog.replication.clients.spark_record_set import run_data_frame
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.errors import InvalidRecordException
from lakelog.replication.protocol.log_cleaner import CleanerConfig, log_to_clean
from lakelog.replication.protocol.record_batch import OffsetRange
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.storage.log.log_cleaning import clean
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.schemas import LOG
from tests.clients.source.reads import batch_reader, places, rows
from tests.clients.world import RARELY, led_world
from tests.storage.logs import NOON, P0, P1, TOPIC, TOPIC_ID, keyed, new_log, request, send

MANY = 2**40
LEFT = [4, 7, 9, 11]  # of the offsets 0 to 11


@pytest.fixture
def world(root):
    """P0 has twelve committed records in six batches, of which the first two have none left."""
    world = led_world(root)
    for number, (first, second) in enumerate(["aa", "bb", "ca", "bd", "ab", "aa"]):
        pairs = [(key.encode(), f"{2 * number + n}".encode()) for n, key in enumerate((first, second))]
        send(world.logs[1], request(P0, 2, 2 * number), tables={P0: keyed(*pairs)})
    world.say(12)
    log = world.logs[1]
    to_clean = log_to_clean(log.refresh().partition(P0), 12, 0, CleanerConfig(0.0, 0, 2**63 - 1, 0))
    assert clean(log, P0, to_clean, 0, 0, MANY, "test")
    return world


def by_fetches(world, start):
    offset, found = start, []
    with world.consumer() as consumer:
        while offset < 12:
            fetched = consumer.fetch(TOPIC, {0: offset}, max_wait_ms=0, max_bytes=1)[0]
            assert fetched.error is None
            assert fetched.next_offset > offset
            found += fetched.records["offset"].to_pylist()
            offset = fetched.next_offset
    return found


def by_one_fetch(world, start):
    with world.consumer() as consumer:
        fetched = consumer.fetch(TOPIC, {0: start}, max_wait_ms=0)[0]
    assert (fetched.error, fetched.next_offset) == (None, 12)
    return fetched.records["offset"].to_pylist()


def by_to_arrow(world, start):
    with world.consumer() as consumer:
        return consumer.to_arrow(TOPIC, {0: start, 1: 0})["offset"].to_pylist()


def by_a_group(world, start):
    found = []
    with Consumer(world.uri, "g", auto_offset_reset="latest", enable_auto_commit=False, **RARELY) as consumer:
        consumer.subscribe([TOPIC])
        consumer.poll(0)
        consumer.seek(TOPIC, 0, start)
        while (position := consumer.position(TOPIC, 0)) < 12:
            found += consumer.poll(1.0)["offset"].to_pylist()
            assert consumer.position(TOPIC, 0) > position
        consumer.commit()
        assert consumer.committed(TOPIC)[0] == 12
    return found


def by_the_source(world, start, **given):
    offsets = f'{{"{TOPIC}": {{"0": {start}, "1": 0}}}}'
    reader = batch_reader(world, startingOffsets=offsets, **given)
    return [offset for _, offset in places(rows(reader, reader.partitions()))]


def by_small_tasks(world, start):
    return by_the_source(world, start, maxRecordsPerPartition="1")


def by_the_console(world, start):
    """It stops for a moment after each record, and reads a batch at a time."""
    reader = ConsoleReader(world.uri, world.cluster.config, TOPIC, EARLIEST, partition=0, offset=start)
    tables = [table for _ in range(12) for table in reader.read(0, 1, 1)]
    assert reader.positions == {0: 12}
    return [offset for table in tables for offset in table["offset"].to_pylist()]


WAYS = [by_fetches, by_one_fetch, by_to_arrow, by_a_group, by_the_source, by_small_tasks, by_the_console]


@pytest.mark.parametrize("is_merged", [False, True], ids=["as it was written", "in one file"])
@pytest.mark.parametrize("read", WAYS)
def test_lc_01_what_is_left_is_read_once_from_any_offset(world, read, is_merged):
    if is_merged:
        assert compact(world.logs[1], 1 << 20, 2, MANY, "test")
    for start in (0, 1, 3, 4, 5, 8, 10, 11):
        assert read(world, start) == [offset for offset in LEFT if offset >= start]


def test_lc_01_spark_reads_what_is_left(world, spark):
    found = read_committed(spark, world.uri, TOPIC, {0: 5}).where(F.col("partition") == 0)
    assert [row["offset"] for row in found.orderBy("offset").collect()] == [7, 9, 11]
    log = world.logs[1]
    read = segment_records(spark, LogRead(log.root, log.refresh(), {P0: OffsetRange(5, 12)}))
    assert sorted(row["offset"] for row in read.collect()) == [7, 9, 11]


def test_lc_01_times_and_lags_are_those_of_records_that_are_left(world, monkeypatch):
    view, reads, read = TopicView(world.cluster), [], offset_lookup.read_records
    opened = PartitionReader(view).leader(view.partitions(TOPIC)[0])
    monkeypatch.setattr(offset_lookup, "read_records", lambda *given: reads.append(1) or read(*given))
    for time in (MAX_TIMESTAMP, int(NOON.timestamp() * 1000)):
        assert offset_for(opened, time).offset == 4
    assert len(reads) == 2, "batches without records are not read"
    lags = [lag_of(opened, committed) for committed in (0, 4, 11)]
    assert [(lag.records, lag.ms) for lag in lags] == [(12, 0), (8, 0), (1, 0)]
    assert [lag.bytes for lag in lags] == [9, 9, 1]


def by_produce(producer, *_):
    producer.produce(TOPIC, b"2", partition=0)


def by_sink(_, world, records):
    writer = TopicWriter(parse_sink_options({"cluster": world.uri, "topic": TOPIC, "acks": "1"}))
    writer.commit([writer.write(records.select(["key", "value"]).to_batches())])


def by_send(producer, _, records):
    producer.send(TOPIC, records)


@pytest.mark.parametrize("more", [{}, {"max.message.bytes": "1000"}], ids=["alone", "with a limit of its own"])
@pytest.mark.parametrize("write", [by_send, by_produce, by_sink])
def test_lc_01_a_compacted_topic_takes_no_record_without_a_key(world, write, more):
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, {"cleanup.policy": "compact", **more})], (), {"who": "test"})
    text = r"^flights-[01]: (a record|record 1) has no key, and a topic with cleanup\.policy=compact takes none without"
    with Producer(world.uri, acks=1) as producer, pytest.raises(InvalidRecordException, match=text):
        write(producer, world, keyed((b"a", b"1"), (None, b"2")))
    state = world.logs[1].refresh()
    assert [state.partition(p).log_end_offset for p in (P0, P1)] == [12, 0]


def test_lc_01_a_large_dataframe_with_a_record_without_a_key_is_refused(spark, root):
    roots = dict.fromkeys((0, 1), new_log(root, P0, P1).root)
    rows = spark.createDataFrame([("a", "1", 1), (None, "2", 1)], "key string, value string, partition int")
    with run_data_frame(TOPIC, rows, 2, 0, 4096, roots, RecordLimit(TOPIC, 3), kept_bytes=0) as given:
        assert given.counts == {1: 2}
    with pytest.raises(InvalidRecordException, match=r"^flights-1: a record has no key"):
        run_data_frame(TOPIC, rows, 2, 0, 4096, roots, RecordLimit(TOPIC, 3, needs_key=True), kept_bytes=0)


def test_lc_01_a_keyed_topic_is_read_as_a_table(spark, root):
    """From an older partition, too, where a key had its records before partitions were added."""
    world = led_world(root)
    late = NOON + dt.timedelta(seconds=1)
    first = [(b"a", b"old"), (b"b", b"1"), (b"b", b"2"), (b"c", b"1"), (b"c", None), (None, b"x"), (b"moved", b"1")]
    second = [(b"moved", b"2"), (b"a", None), (b"a", b"new"), (b"", b"empty")]
    for partition, pairs in ((P0, first), (P1, second)):
        records = keyed(*pairs)
        if partition == P1:
            times = pa.array([late] * len(pairs), records.schema.field("timestamp").type)
            records = records.set_column(records.column_names.index("timestamp"), "timestamp", times)
        send(world.logs[1], request(partition, len(pairs)), tables={partition: records})
        world.say(len(pairs), partition)
    found = read_latest(spark, world.uri, TOPIC)
    assert found.schema.names == list(LOG.names)
    rows = [(bytes(row["key"]), bytes(row["value"]), row["partition"], row["offset"]) for row in found.collect()]
    assert sorted(rows) == [(b"", b"empty", 1, 3), (b"a", b"new", 1, 2), (b"b", b"2", 0, 2), (b"moved", b"2", 1, 0)]
    world.say(3, P1)
    assert read_latest(spark, world.uri, TOPIC).where("key = ''").count() == 0


@pytest.mark.parametrize(("offset", "expected"), [(None, (12, 4, 9)), (6, (6, 3, 7)), (12, (0, 0, 0))])
def test_lc_01_a_range_counts_the_records_that_are_left(world, offset, expected):
    args = Namespace(partitions=[0], offset=offset, since=None, before_offset=None, until=None)
    found = range_of(TopicView(world.cluster), TOPIC, args)
    assert (found.length, found.partitions[0].records, found.partitions[0].bytes) == expected
