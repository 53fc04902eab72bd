"""The writers of `format("lakelog")`, for Spark's analysis of a write. Spark: `KafkaSourceProvider`."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from lakelog.replication.clients.sink.sink_options import (
    SinkOptions,
    check_columns,
    parse_insert_options,
    parse_sink_options,
)
from lakelog.replication.clients.sink.topic_writer import TopicStreamWriter, TopicWriter
from lakelog.replication.clients.spark_worker import plain_errors
from lakelog.replication.clients.topic_view import open_view
from lakelog.replication.errors import InvalidConfigurationException


@plain_errors
def writer_of(given: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """The batch write, also of `INSERT INTO` a view. Raises as `parse_insert_options` and `check_columns`,
    UnknownTopicOrPartitionException, and InvalidConfigurationException for the mode overwrite."""
    if overwrite:
        raise InvalidConfigurationException("mode overwrite: a topic cannot be overwritten; allowed: append")
    return TopicWriter(_checked(parse_insert_options(given), schema))


@plain_errors
def stream_writer_of(given: Mapping[str, str], schema: StructType) -> DataSourceStreamArrowWriter:
    """The streaming write. Every output mode appends, as in Spark's Kafka sink. Raises as `writer_of`."""
    options = _checked(parse_sink_options(given, warn=True), schema)
    options.check_stream()
    return TopicStreamWriter(options)


def _checked(options: SinkOptions, schema: StructType) -> SinkOptions:
    check_columns(schema, options)
    view = open_view(options.cluster, options.config)
    if options.topic is not None:
        view.partitions(options.topic)
    return options
