"""The columns of the source, in the order and types of Spark's Kafka source. Spark: `KafkaRecordToRowConverter`."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakelog.replication.clients.source.source_options import SourceOptions
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.schemas import LOG

_KAFKA = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_TYPES = {column.name: column.type for column in LOG.columns}
_SPARK_TYPES = {column.name: column.spark_type for column in LOG.columns}


def columns_of(options: SourceOptions) -> str:
    """The columns as DDL. `headers` and `leader_epoch` are there if the options ask for them."""
    more = {"headers": options.include_headers, "leader_epoch": options.include_leader_epoch}
    names = (*_KAFKA, *(name for name, is_wanted in more.items() if is_wanted))
    return ", ".join(f"`{name}` {_SPARK_TYPES[name]}" for name in names)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of `schema`. A user's schema may name some of the columns; then only those are read. Raises
    InvalidConfigurationException for an unknown column or a wrong type."""
    for each in schema.fields:
        expected = _TYPES.get(each.name)
        if expected is None or each.dataType.simpleString() != expected:
            columns = ", ".join(f"{name} {type}" for name, type in _TYPES.items())
            raise InvalidConfigurationException(
                f"schema: a topic has no column {each.name} {each.dataType.simpleString()}; allowed: {columns}"
            )
    return to_arrow_schema(schema, timezone="UTC")
