"""Typed values: the fields of a topic's schema in the column `value`."""

import datetime as dt
import io
import json
from decimal import Decimal

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    CharType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from lakelog.replication.clients.producer import Producer
from lakelog.replication.clients.source.partition_view import partition_view
from lakelog.replication.clients.source.source_columns import columns_of
from lakelog.replication.clients.source.topic_reader import TopicReader
from lakelog.replication.clients.source.topic_source import schema_of
from lakelog.replication.clients.source.topic_stream import TopicStreamReader
from lakelog.replication.errors import (
    InvalidConfigurationException,
    InvalidRecordException,
    UnknownTopicOrPartitionException,
)
from lakelog.replication.protocol.avro_schema import parse_avro
from lakelog.replication.protocol.topic import Topic
from lakelog.replication.protocol.value_schema import with_history
from tests.clients.source.reads import options_of, rows, schema
from tests.clients.world import led_world
from tests.storage.logs import P0, TOPIC, TOPIC_ID

NOON = dt.datetime(2026, 11, 30, 12)
DDL = "item STRING NOT NULL, price DECIMAL(10, 2)"
VALUE = StructType([StructField("item", StringType(), False), StructField("price", DecimalType(10, 2))])
COLUMNS = {"value": VALUE, "partition": IntegerType(), "offset": LongType(), "value_error": StringType()}
SENT = ['{"item": "tea", "price": 3.5, "more": 1}', '{"price": 1}', None, "tea", '{"item": "späti", "price": null}']
READ = [
    ({"item": "tea", "price": "3.50"}, None),
    (None, "field item is missing, and it is NOT NULL"),
    (None, None),
    (None, "the value is no JSON: Expecting value at character 1"),
    ({"item": "späti", "price": "None"}, None),
]


def configure(world, schema=DDL, topic=TOPIC, topic_id=TOPIC_ID):
    configs = {} if schema is None else {"value.schema": schema}
    world.cluster.topics.change([Topic(topic, topic_id, 2, configs)], (), {"who": "test"})


def fill(world, *contents):
    with Producer(world.uri, acks=1) as producer:
        producer.send(TOPIC, [{"value": value, "partition": 0} for value in contents])
    world.say(world.logs[1].refresh().partition(P0).log_end_offset)


@pytest.fixture
def world(root):
    made = led_world(root)
    configure(made)
    fill(made, *SENT)
    return made


def typed(world, **given):
    return options_of(world, typedValues="true", **given)


def decoded(found):
    pairs = [(row["value"], row["value_error"]) for row in found]
    return [(value and {**value, "price": str(value["price"])}, error) for value, error in pairs]


def test_the_columns_have_the_schema_of_the_topic(world):
    options = typed(world, includeHeaders="true")
    columns = columns_of(options, partition_view(options).value_schema())
    assert columns == (
        "`key` binary, `value` STRUCT<`item`: STRING NOT NULL, `price`: DECIMAL(10, 2)>, `topic` string, "
        "`partition` int, `offset` bigint, `timestamp` timestamp_ltz, `timestampType` int, "
        "`headers` array<struct<key:string,value:binary>>, `value_error` string"
    )


def test_a_schema_in_json_schema_gives_the_same_columns(world):
    """A reader leaves out fields that a closed schema does not name."""
    properties = {"item": {"type": "string"}, "price": {"type": ["number", "null"]}}
    text = {"type": "object", "properties": properties, "required": ["item"], "additionalProperties": False}
    configs = {"value.schema": json.dumps(text), "value.schema.type": "JSON"}
    world.cluster.topics.change([Topic(TOPIC, TOPIC_ID, 2, configs)], (), {"who": "test"})
    options = typed(world)
    columns = columns_of(options, partition_view(options).value_schema())
    assert "`value` STRUCT<`item`: STRING NOT NULL, `price`: DOUBLE>, " in columns
    value = StructType([StructField("item", StringType(), False), StructField("price", DoubleType())])
    reader = TopicReader(options, schema(**{**COLUMNS, "value": value}))
    found = [(row["value"], row["value_error"]) for row in rows(reader, reader.partitions())]
    assert found[0] == ({"item": "tea", "price": 3.5}, None)
    assert [error for _, error in found] == [error for _, error in READ]


def test_a_value_that_does_not_fit_is_null_and_has_its_reason(world):
    reader = TopicReader(typed(world), schema(**COLUMNS))
    assert decoded(rows(reader, reader.partitions())) == READ


def test_a_stream_decodes_as_a_batch_does(world):
    reader = TopicStreamReader(typed(world, startingOffsets="earliest"), schema(**COLUMNS))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert decoded(rows(reader, reader.partitions(start, end))) == READ


def test_with_failfast_the_first_value_that_does_not_fit_ends_the_query(world):
    reader = TopicReader(typed(world, mode="failfast"), schema(**COLUMNS))
    (task,) = reader.partitions()
    with pytest.raises(InvalidRecordException) as failed:
        list(reader.read(task))
    assert str(failed.value) == (
        "flights-0, record at offset 1: field item is missing, and it is NOT NULL; mode=PERMISSIVE gives null instead"
    )


def test_a_users_schema_chooses_columns_and_fields(world):
    """A value fits then if these fields do."""
    price = StructType([StructField("price", DecimalType(10, 2))])
    reader = TopicReader(typed(world), schema(offset=LongType(), value=price))
    found = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert [row["offset"] for row in found] == [0, 1, 2, 3, 4]
    assert [row["value"] and str(row["value"]["price"]) for row in found] == ["3.50", "1.00", None, None, "None"]


@pytest.mark.parametrize(
    ("types", "text"),
    [
        ({"value": BinaryType()}, "schema: column value is binary; allowed with typedValues: value STRUCT<name: type,"),
        ({"offset": LongType()}, "schema: there is no column value; allowed with typedValues: value STRUCT<"),
        ({"value": VALUE, "value_error": LongType()}, "schema: column value_error is bigint; allowed with typedValues"),
        ({"value": VALUE, "colour": LongType()}, "schema: a topic has no column colour bigint"),
        (
            {"value": StructType([StructField("a", MapType(IntegerType(), IntegerType()))])},
            "schema: field value.a is MAP<INT,INT>; allowed: BOOLEAN,",
        ),
        ({"value": StructType([StructField("a", CharType(3))])}, "schema: field value.a is CHAR(3); allowed: BOOLEAN"),
    ],
)
def test_a_users_schema_that_typed_values_do_not_have_is_refused(world, types, text):
    with pytest.raises(InvalidConfigurationException) as refused:
        TopicReader(typed(world), schema(**types))
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"mode": "DROPMALFORMED"}, "option mode is 'DROPMALFORMED'; allowed: PERMISSIVE, FAILFAST"),
        ({"mode": "FAILFAST", "typedValues": "false"}, "option mode is for typed values; it needs typedValues=true"),
        ({"typedValues": "yes"}, "option typedValues is 'yes'; allowed: true, false"),
    ],
)
def test_wrong_options_of_typed_values_are_refused(world, given, text):
    with pytest.raises(InvalidConfigurationException, match=f"^{text}"):
        options_of(world, **{"typedValues": "true", **given})


def test_the_topics_of_a_read_have_one_schema(world):
    def read(**given):
        schema_of({"cluster": world.uri, "typedValues": "true", **given})

    configure(world, None, "others", "others-id")
    with pytest.raises(InvalidConfigurationException, match=r"^topic others has no value\.schema; to set it: configs"):
        read(subscribe=f"{TOPIC},others")
    configure(world, "item INT", "others", "others-id")
    with pytest.raises(InvalidConfigurationException, match=r"^topics flights and others have different schemas"):
        read(subscribePattern=".*")
    with pytest.raises(UnknownTopicOrPartitionException, match=r"^no topic nobody, and so no schema of its values"):
        read(subscribe="nobody")
    configure(world, DDL, "others", "others-id")
    read(subscribePattern=".*")


ALL_TYPES = (
    "a BOOLEAN, b TINYINT, c BIGINT, d DOUBLE, e DECIMAL(10, 3), f STRING, g BINARY, h DATE, i TIMESTAMP, "
    "j TIMESTAMP_NTZ, k ARRAY<STRUCT<l: INT>>, m MAP<STRING, ARRAY<FLOAT>>, `n o` STRING, p STRUCT<q: INT NOT NULL>"
)
FITTING = [
    {
        "a": True, "b": -5, "c": 2**53 + 1, "d": 1.5, "e": 1.25, "f": "späti", "g": "aGk=", "h": "2026-11-30",
        "i": "2026-11-30T12:00:00.5+01:00", "j": "2026-11-30T12:00:00", "k": [{"l": 1}, None, {}],
        "m": {"x": [0.5, None], "y": None}, "n o": "", "p": {"q": 1},
    },
    {"d": 1, "e": 100, "k": [], "m": {}},
    {},
]  # fmt: skip


def test_typed_values_are_columns_in_batch_stream_and_sql(spark, world, tmp_path):
    """They have what `from_json` makes of values that fit. A stream keeps the schema that it began with."""
    configure(world, ALL_TYPES)
    world.make_again(0, 0)
    configure(world, ALL_TYPES, topic_id="flights-id-2")
    with Producer(world.uri, acks=1) as producer:
        contents = [*map(json.dumps, FITTING), None, "x"]
        producer.send(TOPIC, [{"value": value, "partition": 0} for value in contents])
    world.say(len(contents), next(iter(world.partitions)))
    given = {"cluster": world.uri, "subscribe": TOPIC}
    plain = spark.read.format("lakelog").options(**given).load().where("offset < 4")
    expected = plain.select(F.from_json(F.col("value").cast("string"), ALL_TYPES).alias("value")).collect()
    batch = spark.read.format("lakelog").options(**given, typedValues="true").load()
    assert batch.where("offset < 4").select("value").collect() == expected
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW typed USING lakelog OPTIONS (cluster '{world.uri}', subscribe '{TOPIC}', "
        "typedValues 'true')"
    )
    found = spark.sql("SELECT value.e, get(value.k, 0).l, value_error FROM typed ORDER BY offset").collect()
    assert [tuple(map(str, row)) for row in found] == [
        ("1.250", "1", "None"), ("100.000", "None", "None"), *[("None", "None", "None")] * 2,
        ("None", "None", "the value is no JSON: Expecting value at character 1"),
    ]  # fmt: skip
    spark.catalog.dropTempView("typed")
    begun = spark.readStream.format("lakelog").options(**given, typedValues="true", startingOffsets="earliest").load()
    configure(world, "z INT", topic_id="flights-id-2")
    query = begun.writeStream.format("parquet").options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path))
    assert query.trigger(availableNow=True).start().awaitTermination(120)
    out = spark.read.parquet(str(tmp_path / "out")).where("offset < 4").orderBy("offset")
    assert out.select("value").collect() == expected
    assert spark.read.format("lakelog").options(**given, typedValues="true").load().schema["value"].dataType == (
        StructType([StructField("z", IntegerType())])
    )


def record(*fields, name="Sale"):
    return json.dumps({"type": "record", "name": name, "fields": [{"name": n, **more} for n, more in fields]})


OLD = record(("item", {"type": "string"}), ("count", {"type": "int"}))
NEW = record(
    ("item", {"type": "string"}), ("count", {"type": "long"}),
    ("note", {"type": ["null", "string"], "default": None}),
)  # fmt: skip
IN_AVRO = StructType([StructField("item", StringType(), False), StructField("count", LongType(), False)])


def of_avro(*schemas):
    """The settings of a topic that has had these schemas, with ids from 7 on."""
    settings = {"value.schema.type": "AVRO"}
    for number, text in enumerate(schemas):
        after = {**settings, "value.schema": text, "value.schema.id": str(7 + number)}
        settings = with_history(TOPIC, settings, after, after)
    return settings


def name(text):
    return b"\xc3\x01" + parse_avro(text).fingerprint


def put_in_avro(world, *schemas, topic=TOPIC, topic_id=TOPIC_ID):
    world.cluster.topics.change([Topic(topic, topic_id, 2, of_avro(*schemas))], (), {"who": "test"})


def test_each_value_in_avro_is_decoded_by_the_schema_that_wrote_it(world):
    put_in_avro(world, OLD, NEW)
    contents = [
        name(OLD) + b"\x06tea\x0a",
        b"\0\0\0\0\x08\x06tea\x0a\2\x04ok",
        name(record(("a", {"type": "int"}))) + b"\0",
    ]
    fill(world, *contents)
    options = typed(world, startingOffsets=f'{{"{TOPIC}": {{"0": {len(SENT)}, "1": 0}}}}')
    columns = columns_of(options, partition_view(options).value_schema())
    assert "`value` STRUCT<`item`: STRING NOT NULL, `count`: BIGINT NOT NULL, `note`: STRING>," in columns
    whole = StructType([*IN_AVRO.fields, StructField("note", StringType())])
    reader = TopicReader(options, schema(**{**COLUMNS, "value": whole}))
    found = [(row["value"], row["value_error"]) for row in rows(reader, reader.partitions())]
    assert found[:2] == [
        ({"item": "tea", "count": 5, "note": None}, None), ({"item": "tea", "count": 5, "note": "ok"}, None),
    ]  # fmt: skip
    assert found[2][0] is None
    assert found[2][1].startswith("the value has the schema fingerprint ")
    narrow = TopicReader(options, schema(**{**COLUMNS, "value": IN_AVRO}))
    assert rows(narrow, narrow.partitions())[0]["value"] == {"item": "tea", "count": 5}
    last = f'{{"{TOPIC}": {{"0": {len(SENT) + 2}, "1": 0}}}}'
    failing = TopicReader(typed(world, mode="FAILFAST", startingOffsets=last), schema(**{**COLUMNS, "value": IN_AVRO}))
    with pytest.raises(InvalidRecordException, match=r"^flights-0, record at offset 7: the value has the schema fing"):
        rows(failing, failing.partitions())


def test_a_stream_decodes_by_schemas_that_came_after_it_began_and_keeps_its_columns(world):
    put_in_avro(world, OLD)
    columns = {**COLUMNS, "value": StructType([IN_AVRO.fields[0], StructField("count", IntegerType(), False)])}
    reader = TopicStreamReader(typed(world, startingOffsets="latest"), schema(**columns))
    start = reader.initialOffset()
    fill(world, name(OLD) + b"\x06tea\x0a")
    middle = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert [row["value"] for row in rows(reader, reader.partitions(start, middle))] == [{"item": "tea", "count": 5}]
    newer = record(("item", {"type": "string"}), ("count", {"type": "int"}), ("more", {"type": "int", "default": 0}))
    put_in_avro(world, OLD, newer)
    fill(world, name(newer) + b"\x06tea\x0a\0")
    end = reader.latestOffset(middle, reader.getDefaultReadLimit())
    found = rows(reader, reader.partitions(middle, end))
    assert [(row["value"], row["value_error"]) for row in found] == [({"item": "tea", "count": 5}, None)]


def test_topics_in_avro_and_in_json_are_read_together(world):
    put_in_avro(world, OLD, topic="others", topic_id="others-id")
    configure(world, "item STRING NOT NULL, count INT NOT NULL")
    schema_of({"cluster": world.uri, "typedValues": "true", "subscribePattern": ".*"})
    view = partition_view(typed(world))
    assert [*view.avro_values([TOPIC, "others"])] == ["others"]


def test_columns_that_the_schema_in_avro_does_not_have_are_refused_when_the_read_is_planned(world):
    put_in_avro(world, OLD)
    reader = TopicReader(typed(world), schema(value=StructType([StructField("price", IntegerType())])))
    with pytest.raises(
        InvalidConfigurationException, match=r"^schema: value.schema has no field value.price; allowed: "
    ):
        reader.partitions()


AVRO_TYPES = record(
    ("a", {"type": "boolean"}), ("b", {"type": "int"}), ("c", {"type": "long"}), ("d", {"type": "float"}),
    ("e", {"type": "double"}), ("f", {"type": "bytes"}), ("g", {"type": "string"}),
    ("h", {"type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}}),
    ("i", {"type": {"type": "fixed", "name": "F", "size": 2}}),
    ("j", {"type": ["null", {"type": "array", "items": ["null", "int"]}]}),
    ("k", {"type": {"type": "map", "values": json.loads(record(("x", {"type": "long"}), name="R"))}}),
    ("l", {"type": {"type": "int", "logicalType": "date"}}),
    ("m", {"type": {"type": "long", "logicalType": "timestamp-millis"}}),
    ("n", {"type": {"type": "long", "logicalType": "local-timestamp-micros"}}),
    ("o", {"type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}}),
    ("p", {"type": ["null", "R"]}),
)  # fmt: skip
ROWS = [
    {
        "a": True, "b": -5, "c": 2**53 + 1, "d": 0.5, "e": 1.5, "f": b"\0\xff", "g": "späti", "h": "B", "i": b"hi",
        "j": [1, None], "k": {"x": {"x": 1}}, "l": dt.date(2026, 11, 30), "m": NOON.replace(tzinfo=dt.UTC), "n": NOON,
        "o": Decimal("3.50"), "p": {"x": 7},
    },
    {
        "a": False, "b": 0, "c": 0, "d": 0.0, "e": 0.0, "f": b"", "g": "", "h": "A", "i": b"\0\0", "j": None, "k": {},
        "l": dt.date(1, 1, 1), "m": dt.datetime(9999, 12, 31, tzinfo=dt.UTC), "n": dt.datetime(1, 1, 1),
        "o": Decimal("-0.01"), "p": None,
    },
]  # fmt: skip


def test_values_in_avro_are_columns_of_spark(spark, world):
    """fastavro wrote the values: what Spark has is what was written."""
    put_in_avro(world, AVRO_TYPES)
    contents = []
    for row in ROWS:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, json.loads(AVRO_TYPES), row)
        contents.append(name(AVRO_TYPES) + buffer.getvalue())
    fill(world, *contents)
    frame = spark.read.format("lakelog").options(cluster=world.uri, subscribe=TOPIC, typedValues="true").load()
    found = frame.where(f"offset >= {len(SENT)}").orderBy("offset").select("value.*", "value_error")
    utc = found.withColumn("m", F.date_format(F.col("m"), "yyyy-MM-dd HH")).collect()
    assert [row["m"][:10] for row in utc] == ["2026-11-30", "9999-12-31"]
    assert [each.simpleString() for each in (found.schema["m"].dataType, found.schema["n"].dataType)] == [
        "timestamp", "timestamp_ntz",
    ]  # fmt: skip
    for row, expected in zip(utc, ROWS, strict=True):
        got = row.asDict(recursive=True)
        assert got.pop("value_error") is None
        assert {key: got[key] for key in got if key != "m"} == {key: expected[key] for key in expected if key != "m"}


def test_failfast_and_a_topic_without_a_schema_end_a_query_with_one_sentence(spark, world):
    reader = spark.read.format("lakelog").options(cluster=world.uri, subscribe=TOPIC, typedValues="true")
    configure(world, None)
    with pytest.raises(PySparkException, match=r"topic flights has no value\.schema; to set it") as refused:
        reader.load()
    assert "Traceback" not in str(refused.value)
    configure(world)
    with pytest.raises(PySparkException, match="flights-0, record at offset 1: field item is missing") as refused:
        reader.option("mode", "FAILFAST").load().collect()
    assert "Traceback" not in str(refused.value)
