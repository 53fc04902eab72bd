"""`value.schema.validation`: every way to send refuses a value that does not fit the schema of its topic."""

import json

import pyarrow as pa
import pytest

from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.record_limit import RecordLimit
from lakelog.replication.clients.sink import topic_writer
from lakelog.replication.clients.sink.sink_options import parse_sink_options
from lakelog.replication.clients.sink.topic_writer import TopicWriter
from lakelog.replication.clients.spark_record_set import run_data_frame
from lakelog.replication.errors import InvalidConfigurationException, InvalidRecordException
from lakelog.replication.protocol.avro_schema import parse_avro
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.protocol.value_type import parse_ddl
from tests.clients.world import led_world
from tests.storage.logs import P0, P1, TOPIC, TOPIC_ID, new_log, values

SCHEMA = {"value.schema": "delay INT NOT NULL", "value.schema.validation": "true"}
GOOD, BAD = b'{"delay": 5}', b'{"delay": "late"}'
WORDS = 'does not fit value.schema: field delay is "late", it must be INT; value.schema.validation=false lets it pass'


@pytest.fixture
def world(root):
    return led_world(root)


def configure(world, **configs):
    kept = {key: value for key, value in {**SCHEMA, **configs}.items() if value is not None}
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, kept)], (), {"who": "test"})


def written(world):
    return values(world.logs[1]) + values(world.logs[1], P1)


def by_rows(producer, _, *contents):
    producer.send(TOPIC, [{"value": value, "partition": 1} for value in contents])


def by_table(producer, _, *contents):
    producer.send(TOPIC, pa.table({"value": list(contents), "partition": [1] * len(contents)}))


def asynchronous(producer, _, *contents):
    producer.send_async(TOPIC, [{"value": value, "partition": 1} for value in contents]).result()


def by_produce(producer, _, *contents):
    for value in contents:
        producer.produce(TOPIC, value, partition=1)
    producer.flush()


def by_sink(_, world, *contents):
    writer = TopicWriter(parse_sink_options({"cluster": world.uri, "topic": TOPIC, "acks": "1"}))
    numbers = pa.array([1] * len(contents), pa.int32())
    batches = pa.table({"value": pa.array(contents, pa.binary()), "partition": numbers}).to_batches()
    writer.commit([writer.write(iter(batches))])


@pytest.mark.parametrize("more", [{}, {"max.message.bytes": "1000"}], ids=["alone", "with a limit of its own"])
@pytest.mark.parametrize("send", [by_rows, by_table, asynchronous, by_produce, by_sink])
def test_every_way_to_send_refuses_a_value_that_does_not_fit(world, send, more):
    configure(world, **more)
    with Producer(world.uri, acks=1) as producer:
        send(producer, world, GOOD, None)
        assert written(world) == [GOOD, None]
        with pytest.raises(InvalidRecordException) as refused:
            send(producer, world, BAD)
    which = "record 0" if send in (by_rows, by_table, asynchronous) else "a record"
    assert str(refused.value) == f"flights-1: {which} {WORDS}"
    assert written(world) == [GOOD, None]


AVRO = '{"type": "record", "name": "Sale", "fields": [{"name": "delay", "type": "int"}]}'
WIDER = AVRO.replace('"int"', '"long"')


@pytest.mark.parametrize("send", [by_rows, by_table, by_produce, by_sink])
def test_a_value_in_avro_names_a_schema_that_the_topic_has_had(world, send):
    """It may be an earlier one."""
    history = json.dumps([{"schema": json.loads(AVRO), "ids": [7]}])
    more = {"value.schema": WIDER, "value.schema.type": "AVRO", "value.schema.history": history}
    configure(world, **more)
    good = [b"\xc3\x01" + parse_avro(text).fingerprint + b"\x0a" for text in (AVRO, WIDER)]
    good.append(b"\0\0\0\0\7\x0a")
    with Producer(world.uri, acks=1) as producer:
        send(producer, world, *good, None)
        for bad, words in (
            (b"\0\0\0\0\x08\x0a", "the value has the schema id 8, which value.schema.history does not have; to add it"),
            (b"\x0a", "the value does not name its schema; allowed: Avro's single-object encoding"),
            (good[0] + b"\0", "the value has 1 more bytes than its schema has"),
            (good[0][:-1], "field delay ends too early"),
        ):
            with pytest.raises(InvalidRecordException) as refused:
                send(producer, world, bad)
            assert f"does not fit value.schema: {words}" in str(refused.value)
    assert written(world) == [*good, None]


def test_values_are_not_checked_unless_the_topic_asks_for_it(world):
    configure(world, **{"value.schema.validation": None})
    with Producer(world.uri, acks=1) as producer:
        by_rows(producer, world, BAD)
    assert written(world) == [BAD]


def test_a_schema_that_the_producer_does_not_know_lets_nothing_pass_unchecked(world):
    configure(world, **{"value.schema.type": "PROTOBUF"})
    text = "^topic flights: value.schema.type is 'PROTOBUF'; this version knows DDL, JSON, AVRO$"
    with Producer(world.uri, acks=1) as producer, pytest.raises(InvalidConfigurationException, match=text):
        by_rows(producer, world, GOOD)
    assert written(world) == []


def test_a_task_tells_of_one_misfit_and_the_driver_decides_by_the_settings_of_then(world):
    configure(world)
    contents = pa.array([GOOD, BAD, BAD], pa.binary())
    batch = pa.RecordBatch.from_pydict({"value": contents, "partition": pa.array([0, 0, 1], pa.int32())})
    options = parse_sink_options({"cluster": world.uri, "topic": TOPIC, "acks": "1"})
    message = topic_writer._write(options, "own", "own", 0, iter([batch]))
    (refused,) = message.refused
    assert (refused.partition, refused.misfit) == (0, 'field delay is "late", it must be INT')
    with pytest.raises(InvalidRecordException, match=r"^flights-0: a record does not fit"):
        refused.check(RecordLimit(TOPIC, 1000, values=parse_ddl("delay INT")))
    refused.check(RecordLimit(TOPIC, 1000))


def test_a_large_dataframe_is_checked_by_its_tasks(spark, root):
    roots = dict.fromkeys((0, 1), new_log(root, P0, P1).root)
    rows = spark.createDataFrame([(GOOD.decode(), 0), (None, 1), (BAD.decode(), 1)], "value string, partition int")
    schema = parse_ddl(SCHEMA["value.schema"])
    with run_data_frame(TOPIC, rows, 2, 0, 4096, roots, RecordLimit(TOPIC, 1000), kept_bytes=0) as given:
        assert given.counts == {0: 1, 1: 2}
    with pytest.raises(InvalidRecordException) as refused:
        run_data_frame(TOPIC, rows, 2, 0, 4096, roots, RecordLimit(TOPIC, 1000, values=schema), kept_bytes=0)
    assert str(refused.value) == f"flights-1: a record {WORDS}"
