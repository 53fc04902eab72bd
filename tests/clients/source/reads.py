"""Reads by the source as Spark does them, without Spark: plan, then each task."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lakelog.replication.clients.source.source_columns import columns_of
from lakelog.replication.clients.source.source_options import parse_options
from lakelog.replication.clients.source.topic_reader import TopicReader
from lakelog.replication.clients.source.topic_stream import TopicStreamReader
from tests.storage.logs import TOPIC

TYPES = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    "leader_epoch": IntegerType(),
}


def options_of(world, **given):
    """Options of a read of the test's topic. It gives up on leaders that are not there at once."""
    chosen = {} if {"subscribePattern", "assign"} & set(given) else {"subscribe": TOPIC}
    return parse_options({"cluster": world.uri, "kafka.request.timeout.ms": "1", **chosen, **given})


def schema(**types):
    """A schema of columns with these types."""
    return StructType([StructField(name, type) for name, type in types.items()])


def schema_of(options):
    """The schema that Spark makes of the source's columns."""
    names = [column.split("`")[1] for column in columns_of(options).split(", ")]
    return schema(**{name: TYPES[name] for name in names})


def batch_reader(world, **given):
    options = options_of(world, **given)
    options.check_batch()
    return TopicReader(options, schema_of(options))


def stream_reader(world, **given):
    options = options_of(world, **given)
    return TopicStreamReader(options, schema_of(options))


def rows(reader, tasks):
    """The records of the tasks, in order of partitions and offsets."""
    found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def places(found):
    return [(row["partition"], row["offset"]) for row in found]


def read_batch(world, **given):
    """Partition and offset of each record of a batch read."""
    reader = batch_reader(world, **given)
    return places(rows(reader, reader.partitions()))
