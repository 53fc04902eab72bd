"""`max.message.bytes`: whose limit holds, what counts, and that every way in refuses a record that is too large."""

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.record_limit import RecordLimit, record_sizes
from lakelog.replication.clients.records import to_records
from lakelog.replication.clients.sink import topic_writer
from lakelog.replication.clients.sink.sink_options import parse_sink_options
from lakelog.replication.clients.sink.topic_writer import TopicStreamWriter, TopicWriter
from lakelog.replication.clients.spark_record_set import run_data_frame
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Config
from lakelog.replication.errors import KafkaStorageException, RecordTooLargeException
from lakelog.replication.protocol.topic import BROKER_TYPE, DEFAULT_NAME, Entity, Topic
from lakelog.replication.storage.cluster import Cluster
from tests.clients.world import LONG, led_world
from tests.storage.delta.answers import lose_an_answer
from tests.storage.logs import P0, P1, TOPIC, TOPIC_ID, new_log, values

LARGE = b"x" * 100


@pytest.fixture
def world(root):
    return led_world(root)


def limit_topic(world, limit):
    configs = {} if limit is None else {"max.message.bytes": str(limit)}
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, configs)], (), {"who": "test"})


def limit_brokers(world, **limits):
    for name, limit in limits.items():
        entity = Entity(BROKER_TYPE, DEFAULT_NAME if name == "all" else name.removeprefix("broker_"))
        world.cluster.configs.change({entity: {"message.max.bytes": str(limit)}}, {"who": "test"})


def written(world):
    return values(world.logs[1]) + values(world.logs[1], P1)


@pytest.mark.parametrize(
    ("own", "brokers", "client", "limits"),
    [
        pytest.param(None, {}, {}, (1048588, 1048588), id="Kafka's default"),
        pytest.param(None, {}, {"message.max.bytes": 7}, (7, 7), id="the client's file"),
        pytest.param(None, {"all": 8}, {"message.max.bytes": 7}, (8, 8), id="all brokers"),
        pytest.param(None, {"all": 8, "broker_2": 9}, {}, (8, 9), id="the broker that leads"),
        pytest.param(None, {"broker_1": 5}, {"message.max.bytes": 7}, (5, 7), id="one of the brokers"),
        pytest.param(None, {"all": "?", "broker_2": 9}, {"message.max.bytes": 7}, (7, 9), id="no number"),
        pytest.param(11, {"all": 8, "broker_2": 9}, {"message.max.bytes": 7}, (11, 11), id="the topic"),
        pytest.param(0, {}, {}, (0, 0), id="the topic, nothing"),
    ],
)
def test_ap_06_the_limit_is_that_of_the_topic_or_of_the_leader(world, own, brokers, client, limits):
    world.change(P1, leader=2)
    limit_topic(world, own)
    limit_brokers(world, **brokers)
    view = TopicView(Cluster.open(world.uri, Config.from_properties(client)))
    view.partitions(TOPIC)
    found = view.record_limit(TOPIC)
    for partition, limit in (*enumerate(limits), (None, min(limits))):
        found.check(limit, partition)
        with pytest.raises(RecordTooLargeException, match=f"max.message.bytes is {limit};"):
            found.check(limit + 1, partition)


HEADERS = [
    None,
    [],
    [{"key": "h", "value": b"123"}],
    [{"key": "é", "value": None}, {"key": "", "value": b"1"}],
]


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_ap_06_keys_values_and_headers_count(rows):
    """Of all chunks and slices of a table."""
    keys, contents = [None, b"", b"k", b"key"], [b"value", None, b"v", b""]
    table = pa.table({"key": keys, "value": contents})
    types = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = to_records(table.append_column("headers", pa.array(HEADERS, types)))
    chunked = pa.concat_tables([table.slice(1, rows), table, table.slice(0, 0)])
    expected = [5, 0, 1 + 1 + 4, 3 + 2 + 1]
    assert record_sizes(table).to_pylist() == expected
    assert record_sizes(chunked).to_pylist() == [*expected[1 : 1 + rows], *expected]
    assert record_sizes(to_records(pa.table({"value": ["é"]}))).to_pylist() == [2]


WAYS = {
    "rows": lambda producer, rows: producer.send(TOPIC, rows),
    "an Arrow table": lambda producer, rows: producer.send(TOPIC, pa.Table.from_pylist(rows)),
    "asynchronous": lambda producer, rows: producer.send_async(TOPIC, rows),
}


@pytest.mark.parametrize("way", WAYS)
def test_ap_06_a_record_that_is_too_large_is_refused_by_every_way_in(world, way):
    """And nothing of its send is written."""
    limit_topic(world, 99)
    rows = [{"value": b"a", "partition": 0}, {"value": LARGE, "partition": 1}]
    with Producer(world.uri, acks=1) as producer:
        with pytest.raises(RecordTooLargeException) as refused:
            WAYS[way](producer, rows)
        assert not refused.value.retriable
        limit_topic(world, 100)
        assert written(world) == []
        WAYS[way](producer, rows)
    assert sorted(written(world)) == [b"a", LARGE]
    assert str(refused.value) == (
        "flights-1: record 1 has 100 bytes in key, value and headers, and max.message.bytes is 99; to raise it: "
        "configs --alter --entity-type topics --entity-name flights --add-config max.message.bytes=100"
    )


def test_ap_06_a_single_record_that_is_too_large_concerns_no_other(world):
    limit_topic(world, 10)
    with Producer(world.uri, acks=1, linger_ms=LONG) as producer:
        producer.produce(TOPIC, "a", partition=0)
        with pytest.raises(RecordTooLargeException, match=r"^flights-0: a record has 11 bytes"):
            producer.produce(TOPIC, "123456", "key", partition=0, headers={"é": None})
        with pytest.raises(RecordTooLargeException, match=r"^flights: a record has 11 bytes"):
            producer.produce(TOPIC, "12345678901")
        producer.produce(TOPIC, "1234567890", partition=0)
    assert written(world) == [b"a", b"1234567890"]


def test_ap_06_records_that_were_taken_before_the_limit_was_lowered_are_sent(world, monkeypatch):
    """Also if the first attempt was committed, and its answer was lost."""
    with Producer(world.uri, acks=1, linger_ms=LONG) as producer:
        future = producer.send_async(TOPIC, [{"value": LARGE, "partition": 0}])
        producer.produce(TOPIC, LARGE, partition=1)
        limit_topic(world, 99)
        lost = lose_an_answer(monkeypatch, lambda _, cause: cause["why"] == "append")
        producer.flush()
        assert future.result()[0].error is None
    assert (written(world), len(lost)) == ([LARGE, LARGE], 1)


def test_ap_06_limits_of_entities_that_a_newer_version_has_are_none_of_brokers(world):
    limits = {Entity(BROKER_TYPE, "rack=eu"): 5, Entity("clients", "1"): 6, Entity(BROKER_TYPE, "1"): 99}
    put = {entity: {"message.max.bytes": str(limit), "x.y": "z"} for entity, limit in limits.items()}
    world.cluster.configs.change(put, {"who": "test"})
    view = TopicView(Cluster.open(world.uri))
    view.partitions(TOPIC)
    found = view.record_limit(TOPIC)
    found.check(99, 0)
    with pytest.raises(RecordTooLargeException, match=r"max\.message\.bytes is 99;"):
        found.check(100, 0)


def test_ap_06_a_limit_that_cannot_be_read_is_the_one_that_was_read_last(world, monkeypatch):
    limit_brokers(world, all=99)
    view = TopicView(Cluster.open(world.uri))
    view.partitions(TOPIC)

    def fail(*_):
        raise KafkaStorageException("out of reach")

    for name, limit in (("open", 1048588), ("refresh", 99)):
        with monkeypatch.context() as patch:
            patch.setattr("lakelog.replication.storage.tables.config_table.ConfigTable." + name, fail)
            with pytest.raises(RecordTooLargeException, match=f"max.message.bytes is {limit};"):
                view.record_limit(TOPIC).check(2_000_000, 0)
        view.record_limit(TOPIC)


def test_ap_06_a_large_dataframe_is_measured_by_its_tasks(spark, root):
    roots = dict.fromkeys((0, 1), new_log(root, P0, P1).root)
    rows = spark.range(4, numPartitions=1).select(
        F.expr("repeat('x', CAST(id AS INT))").alias("value"), F.lit(1).alias("partition")
    )
    with run_data_frame(TOPIC, rows, 2, 0, 4096, roots, RecordLimit(TOPIC, 3), kept_bytes=0) as given:
        assert given.counts == {1: 4}
    with pytest.raises(RecordTooLargeException, match=r"^flights-1: a record has 3 bytes .* is 2;"):
        run_data_frame(TOPIC, rows, 2, 0, 4096, roots, RecordLimit(TOPIC, 2), kept_bytes=0)


def task(world, *contents):
    """What a task of a query hands over."""
    batch = pa.RecordBatch.from_pydict(
        {"value": list(contents), "partition": pa.array([0] * len(contents), pa.int32())}
    )
    options = parse_sink_options({"cluster": world.uri, "topic": TOPIC})
    return topic_writer._write(options, "own", "own", 0, iter([batch]))


def test_ap_06_a_batch_query_with_a_record_that_is_too_large_writes_nothing(world):
    limit_topic(world, 99)
    writer = TopicWriter(parse_sink_options({"cluster": world.uri, "topic": TOPIC, "acks": "1"}))
    messages = [writer.write(pa.table({"value": [value]}).to_batches()) for value in (b"a", LARGE)]
    with pytest.raises(RecordTooLargeException, match=r"^flights-[01]: a record has 100 bytes .* is 99;"):
        writer.commit(messages)
    assert written(world) == []


def test_ap_06_a_batch_of_a_stream_is_refused_until_it_is_staged(world, monkeypatch):
    """A batch that an earlier run has staged may be committed in part, so it is finished under any limit."""
    sent, stage = [], world.cluster.root.child("sinks", "own")

    class SendExecutor:
        def __init__(self, *_):
            pass

        def known(self, producer_ids, topics):
            return []

        def send(self, producer_id, parts, sequences):
            sent.append({topic: dict(each) for topic, each in sequences.items()})
            if len(sent) == 1:
                raise KafkaStorageException("in the middle")

    monkeypatch.setattr(topic_writer, "SinkSender", SendExecutor)
    limit_topic(world, 99)
    writer = TopicStreamWriter(parse_sink_options({"cluster": world.uri, "topic": TOPIC}))
    with pytest.raises(RecordTooLargeException, match=r"^flights-0: a record has 100 bytes"):
        writer.commit([task(world, b"a", LARGE)], 0)
    assert [name for name in stage.list() if name.startswith("batch-")] == sent == []
    found = task(world, b"a", LARGE)
    limit_topic(world, 100)
    with pytest.raises(KafkaStorageException):
        writer.commit([found], 0)
    limit_topic(world, 99)
    writer.commit([task(world, b"a", LARGE)], 0)
    assert sent == [{TOPIC: {0: 0}}] * 2
