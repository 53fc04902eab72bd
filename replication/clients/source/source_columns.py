"""The columns of the source, in the order and types of Spark's Kafka source. Spark: `KafkaRecordToRowConverter`."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lakelog.replication.clients.source.source_options import SourceOptions
from lakelog.replication.clients.source.typed_values import VALUE_ERROR, spark_values
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.protocol.value_type import FieldsType
from lakelog.schemas import LOG

_KAFKA = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_TYPES = {column.name: column.type for column in LOG.columns}
_SPARK_TYPES = {column.name: column.spark_type for column in LOG.columns}


def columns_of(options: SourceOptions, values: FieldsType | None = None) -> str:
    """The columns as DDL. `headers` and `leader_epoch` are there if the options ask for them. `values`: the schema of
    typed values."""
    more = {"headers": options.include_headers, "leader_epoch": options.include_leader_epoch}
    names = (*_KAFKA, *(name for name, is_wanted in more.items() if is_wanted))
    typed = {} if values is None else {"value": str(values), VALUE_ERROR: "string"}
    types = {**{name: _SPARK_TYPES[name] for name in names}, **typed}
    return ", ".join(f"`{name}` {type}" for name, type in types.items())


def arrow_schema(schema: StructType, typed_values: bool = False) -> pa.Schema:
    """The Arrow schema of `schema`. A user's schema may name some of the columns; then only those are read. With
    `typed_values` it may choose the fields of a value, too. Raises InvalidConfigurationException for an unknown column
    or a wrong type."""
    if typed_values:
        spark_values(schema)
    for each in schema.fields:
        if typed_values and each.name in ("value", VALUE_ERROR):
            continue
        expected = _TYPES.get(each.name)
        if expected is None or each.dataType.simpleString() != expected:
            columns = ", ".join(f"{name} {type}" for name, type in _TYPES.items())
            raise InvalidConfigurationException(
                f"schema: a topic has no column {each.name} {each.dataType.simpleString()}; allowed: {columns}"
            )
    return to_arrow_schema(schema, timezone="UTC")
