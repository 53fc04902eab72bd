"""The options of `format("lakelog")` when writing, and the columns that it takes. Spark: `KafkaWriter`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lakelog.replication.clients.source.source_options import STRATEGIES, parse_options
from lakelog.replication.clients.spark_options import known_options
from lakelog.replication.config import Config
from lakelog.replication.errors import InvalidConfigurationException, InvalidRecordException
from lakelog.replication.protocol.append import ALL, parse_acks
from lakelog.replication.protocol.topic import check_not_internal
from lakelog.schemas import LOG

if TYPE_CHECKING:
    from pyspark.sql.types import StructType  # the verbs that stage batches need no Spark

# Each option with its default and its meaning. The documents are made from this.
OPTIONS: Mapping[str, tuple[str, str]] = {
    "cluster": (
        "",
        "URI of the cluster root, or all, separated by commas; `kafka.bootstrap.servers` is another name",
    ),
    "topic": ("", "topic of all records; without it the column topic names it"),
    "acks": ("all", "all, 1 or 0; a stream has all; also `kafka.acks`"),
    "includeHeaders": ("", "taken for compatibility, without effect: a column headers is always written"),
}
_ALIASES = {"kafka.bootstrap.servers": "cluster", "kafka.acks": "acks"}

_HEADERS = "array<struct<key:string,value:binary>>"
# The columns that are written, and their types. Others are left out, as by Spark's Kafka sink.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
}
# A batch as the executors hand it over: each record with its place.
_ROUTED = ("topic", "partition", "key", "value", "timestamp", "headers")
ROUTED = pa.schema([(name, LOG.arrow.field(name).type) for name in _ROUTED])


@dataclass(frozen=True)
class SinkOptions:
    """The parsed options. `topic` is None if a column has it."""

    cluster: str
    config: Config
    topic: str | None
    acks: int

    def check_stream(self) -> None:
        """Raises InvalidConfigurationException for a stream that does not wait for all in-sync replicas: its batches
        would not be written exactly once."""
        if self.acks != ALL:
            raise InvalidConfigurationException("option acks: a stream writes each record exactly once; allowed: all")


def parse_sink_options(given: Mapping[str, str], warn: bool = False) -> SinkOptions:
    """The options of a write. Raises InvalidConfigurationException, InvalidRequiredAcksException and, for an internal
    topic, InvalidTopicException."""
    options, storage = known_options(given, OPTIONS, _ALIASES, (), warn)
    topic = options.get("topic")
    if topic is not None:
        check_not_internal(topic, "a sink")
    config = Config.from_properties(storage, "options")
    return SinkOptions(options["cluster"], config, topic, parse_acks(options.get("acks", "all")))


def parse_insert_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a batch write, which may be `INSERT INTO` a view of topics: Spark then gives those of its read.
    The records go to the topic that the view subscribes to; if it reads several, the column topic names it.

    Raises as `parse_sink_options`, or for a view as `parse_options` of the source.
    """
    names = {name.lower() for name in given}
    if "topic" in names or names.isdisjoint(name.lower() for name in STRATEGIES):
        return parse_sink_options(given, warn=True)
    view = parse_options(given)
    topic = view.topics[0] if len(view.topics) == 1 else None
    if topic is not None:
        check_not_internal(topic, "a sink")
    return SinkOptions(view.cluster, view.config, topic, ALL)


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises InvalidRecordException for a column of a wrong type, and if there is no value or no topic."""
    types = {each.name: each.dataType.simpleString() for each in schema.fields}
    for name, allowed in COLUMNS.items():
        if name in types and types[name] not in allowed:
            raise InvalidRecordException(f"column {name} is {types[name]}; allowed: {' or '.join(allowed)}")
    if "value" not in types:
        raise InvalidRecordException("there is no column value; a null value is a tombstone, and allowed")
    if options.topic is None and "topic" not in types:
        raise InvalidRecordException("there is no topic: set the option topic, or add a column topic")
