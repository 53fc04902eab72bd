"""The columns and options of the sink, and the partitions of its records."""

import os

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from lakelog.replication.clients.partitioner import partition_of_keys
from lakelog.replication.clients.sink import topic_writer
from lakelog.replication.clients.sink.routed_records import by_topic, large_and_small, routed_chunks
from lakelog.replication.clients.sink.sink_options import (
    ROUTED,
    check_columns,
    parse_insert_options,
    parse_sink_options,
)
from lakelog.replication.clients.sink.sink_stage import SinkStage
from lakelog.replication.clients.sink.topic_writer import TaskRecords, TopicStreamWriter
from lakelog.replication.errors import (
    InvalidConfigurationException,
    InvalidPartitionsException,
    InvalidRecordException,
    InvalidRequiredAcksException,
    InvalidTopicException,
    KafkaStorageException,
    LakelogException,
)
from lakelog.replication.protocol.append import ALL
from lakelog.replication.storage.staged_batch import StagedBatch
from tests.clients.world import World
from tests.storage.logs import TOPIC

PARTITIONS = {"a": 3, "b": 1}


def raises(error):
    def call(*_):
        raise error

    return call


def routed(rows, topic=None, types=None):
    table = pa.Table.from_pylist(rows, pa.schema(types) if types else None)
    return list(routed_chunks(table.to_batches(), topic, PARTITIONS.__getitem__))


def test_the_topic_of_a_record_is_that_of_the_option_or_else_of_its_column():
    rows = [{"topic": "b", "value": "x"}, {"topic": "a", "value": "y"}, {"topic": "b", "value": None}]
    (found,) = routed(rows)
    assert found.schema == ROUTED
    assert {topic: ours["value"].to_pylist() for topic, ours in by_topic(found)} == {"a": [b"y"], "b": [b"x", None]}
    (found,) = routed(rows, topic="b")
    assert found["topic"].to_pylist() == ["b"] * 3


def test_partitions_are_those_of_the_column_or_kafkas_for_the_key_and_one_for_all_records_without_a_key():
    keys = [b"k1", b"k2", None, None]
    (found,) = routed([{"key": key, "value": "v", "ignored": 1} for key in keys], topic="a")
    expected = partition_of_keys(pa.array(keys), 3, 0).to_pylist()
    numbers = found["partition"].to_pylist()
    assert numbers[:2] == expected[:2]
    assert numbers[2] == numbers[3]
    (found,) = routed(
        [{"key": None, "value": "v", "partition": 2}, {"key": b"k1", "value": "v", "partition": None}], topic="a"
    )
    assert found["partition"].to_pylist() == [2, expected[0]]


def test_large_tasks_come_in_chunks_and_empty_ones_in_none():
    assert routed([], topic="a", types=[("value", pa.binary())]) == []
    batch = pa.RecordBatch.from_pydict({"value": [bytes(1_000_000)] * 10})
    chunks = list(routed_chunks([batch] * 10, "b", PARTITIONS.__getitem__))
    assert [chunk.num_rows for chunk in chunks] == [40, 40, 20]


@pytest.mark.parametrize(
    ("rows", "topic", "error", "text"),
    [
        ([{"topic": "a", "value": "v"}, {"topic": None, "value": "v"}], None, InvalidRecordException, "has no topic"),
        ([{"value": "v", "partition": 3}], "a", InvalidPartitionsException, "partition 3 is out of range, .* 0 to 2"),
        ([{"topic": "__x", "value": "v"}], None, InvalidTopicException, "__x"),
    ],
)
def test_records_without_a_place_are_refused(rows, topic, error, text):
    with pytest.raises(error, match=text):
        routed(rows, topic)


def test_the_sink_takes_kafkas_option_names_and_a_stream_refuses_other_acks_than_all():
    found = parse_sink_options({"kafka.bootstrap.servers": "/lake", "TOPIC": "a", "kafka.acks": "1"})
    assert (found.cluster, found.topic, found.acks) == ("/lake", "a", 1)
    assert parse_sink_options({"cluster": "/lake"}).acks == ALL
    with pytest.raises(InvalidConfigurationException, match=r"option acks: a stream writes .* allowed: all"):
        found.check_stream()


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({}, InvalidConfigurationException, "option cluster is missing"),
        ({"cluster": "/lake", "acks": "2"}, InvalidRequiredAcksException, "acks is '2'"),
        ({"cluster": "/lake", "topics": "a"}, InvalidConfigurationException, "did you mean topic?"),
        ({"cluster": "/lake", "subscribe": "a"}, InvalidConfigurationException, "option subscribe is unknown"),
        ({"cluster": "/lake", "topic": "__consumer_offsets"}, InvalidTopicException, "__consumer_offsets"),
    ],
)
def test_a_wrong_option_of_the_sink_is_an_error_that_names_it(given, error, text):
    with pytest.raises(error) as found:
        parse_sink_options(given)
    assert text in str(found.value)


@pytest.mark.parametrize(
    ("given", "topic"),
    [
        ({"subscribe": "a"}, "a"),
        ({"SUBSCRIBE": " a ,a", "startingOffsets": "latest", "includeHeaders": "true"}, "a"),
        ({"subscribe": "a,b"}, None),
        ({"subscribePattern": "a.*"}, None),
        ({"assign": '{"a": [1]}'}, None),
        ({"topic": "b", "acks": "all"}, "b"),
        ({}, None),
    ],
)
def test_records_that_are_inserted_into_a_view_go_to_the_one_topic_that_it_subscribes_to(given, topic):
    found = parse_insert_options({"kafka.bootstrap.servers": "/lake", **given})
    assert (found.cluster, found.topic, found.acks) == ("/lake", topic, ALL)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"subscribe": "a", "topic": "b"}, InvalidConfigurationException, "option subscribe is unknown; allowed: cl"),
        ({"subscribe": "a", "acks": "1"}, InvalidConfigurationException, "option acks is unknown; "),
        ({"subscribe": "__consumer_offsets"}, InvalidTopicException, "__consumer_offsets"),
        ({"subscribe": "a", "startingOffsets": "soon"}, InvalidConfigurationException, "startingOffsets is 'soon'"),
    ],
)
def test_a_wrong_option_of_a_view_is_an_error_of_an_insert_into_it(given, error, text):
    with pytest.raises(error) as found:
        parse_insert_options({"cluster": "/lake", **given})
    assert text in str(found.value)


@pytest.mark.parametrize(
    ("types", "topic", "text"),
    [
        ({"key": BinaryType()}, "a", "there is no column value"),
        ({"value": LongType()}, "a", "column value is bigint; allowed: binary or string"),
        ({"value": StringType(), "topic": IntegerType()}, None, "column topic is int; allowed: string"),
        ({"value": StringType(), "partition": LongType()}, "a", "column partition is bigint; allowed: int"),
        ({"value": StringType(), "headers": StringType()}, "a", "column headers is string; allowed: array<struct"),
        ({"value": StringType()}, None, "there is no topic: set the option topic, or add a column topic"),
        ({"value": StringType(), "other": LongType()}, "a", None),
        ({"value": BinaryType(), "topic": StringType(), "partition": IntegerType()}, None, None),
    ],
)
def test_wrong_columns_of_the_sink_are_refused_as_by_the_kafka_sink(types, topic, text):
    schema = StructType([StructField(name, type) for name, type in types.items()])
    options = parse_sink_options({"cluster": "/lake", **({"topic": topic} if topic else {})})
    found = _error_of(schema, options)
    assert (found is None) == (text is None)
    assert text is None or text in str(found)


def _error_of(schema, options) -> LakelogException | None:
    try:
        return check_columns(schema, options)
    except LakelogException as error:
        return error


def test_the_records_of_a_large_partition_are_staged_in_batches_of_at_most_32_mb():
    rows = pa.table(
        {"value": [bytes([n % 7]) * 1_000_000 for n in range(40)], "partition": pa.array([0, 1] + [0] * 38, pa.int32())}
    )
    (chunk,) = routed_chunks(rows.to_batches(), "a", PARTITIONS.__getitem__)
    large, small = large_and_small(chunk)
    assert [(topic, partition, table.num_rows) for topic, partition, table in large] == [
        ("a", 0, 33),
        ("a", 0, 6),
        ("a", 1, 1),
    ]
    values = [value for _, partition, table in large if partition == 0 for value in table["value"].to_pylist()]
    assert values == [value for n, value in enumerate(rows["value"].to_pylist()) if n != 1]
    assert (small.num_rows, small.schema) == (0, ROUTED)


def test_the_records_of_small_partitions_are_staged_together_in_their_order():
    large, small = large_and_small(routed([{"value": str(n), "partition": n % 2} for n in range(10)], topic="a")[0])
    assert large == []
    assert small["value"].to_pylist() == [str(n).encode() for n in (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)]


def test_a_query_that_starts_frees_the_stages_of_dead_queries(tmp_path, monkeypatch, caplog):
    """An error of that does not fail the batch, which is committed."""
    world = World(str(tmp_path))
    stages = world.cluster.root.child("sinks")
    for name in ("own", "dead"):
        SinkStage(stages.child(name)).put_batch(StagedBatch(0, 7, (), {}, {}))
    SinkStage(stages.child("dead")).put_done(0)
    for file in (tmp_path / "cluster" / "sinks" / "dead").iterdir():
        os.utime(file, (0, 0))
    monkeypatch.setattr(topic_writer, "commit_batch", lambda *_: None)
    writer = TopicStreamWriter(parse_sink_options({"cluster": world.uri, "topic": TOPIC}))
    for batch_id in (1, 1000):
        assert len(stages.child("dead").list()) == 2
        writer.commit([TaskRecords("own", [])], batch_id)
    assert stages.child("dead").list() == ["done-0"]
    monkeypatch.setattr(topic_writer, "free_unused_stages", raises(KafkaStorageException("full")))
    writer.commit([TaskRecords("own", [])], 0)
    assert "stay for now: full" in caplog.text
