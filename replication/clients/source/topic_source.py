"""The columns and readers of `format("lakelog")`, for Spark's analysis of a read. Spark: `KafkaSourceProvider`."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from lakelog.replication.clients.source.partition_view import partition_view
from lakelog.replication.clients.source.source_columns import columns_of
from lakelog.replication.clients.source.source_options import parse_options
from lakelog.replication.clients.source.topic_reader import TopicReader
from lakelog.replication.clients.source.topic_stream import RefusedStreamReader, TopicStreamReader
from lakelog.replication.clients.spark_worker import plain_errors
from lakelog.replication.errors import LakelogException


@plain_errors
def schema_of(given: Mapping[str, str]) -> str:
    """The columns as DDL. Raises InvalidConfigurationException for wrong options, InconsistentClusterIdException if
    there is no cluster, and for typed values as `PartitionView.value_schema`."""
    options = parse_options(given, warn=True)
    view = partition_view(options)
    return columns_of(options, view.value_schema() if options.typed_values else None)


@plain_errors
def reader_of(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The batch read. Raises InvalidConfigurationException for options that it does not have."""
    options = parse_options(given)
    options.check_batch()
    return TopicReader(options, schema)


def stream_reader_of(given: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The stream. A wrong option or column is an error when Spark first asks the stream for an offset: PySpark would
    replace an error that is raised here by one of its own."""
    try:
        options = parse_options(given)
        options.check_stream()
        return TopicStreamReader(options, schema)
    except LakelogException as error:
        return RefusedStreamReader(error)
