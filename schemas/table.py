"""Describes tables by columns in Spark's DDL, which Arrow, Delta and Spark all read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_EPOCHS = pa.list_(pa.struct([("leader_epoch", pa.int32()), ("start_offset", pa.int64()), ("chain", pa.string())]))
_PARTITIONS = pa.list_(pa.struct([("topic", pa.string()), ("topic_id", pa.string()), ("partition", pa.int32())]))
_EPOCH_RANGES = pa.list_(
    pa.struct([("leader_epoch", pa.int32()), ("start_offset", pa.int64()), ("end_offset", pa.int64())])
)

# Spark types -> Arrow types. Delta keeps microseconds: a file with nanoseconds commits, but Spark cannot read it.
ARROW_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<bigint>": pa.list_(pa.int64()),
    "array<int>": pa.list_(pa.int32()),
    "array<string>": pa.list_(pa.string()),
    "array<struct<key:string,value:binary>>": _HEADERS,
    "array<struct<leader_epoch:int,start_offset:bigint,chain:string>>": _EPOCHS,
    "array<struct<leader_epoch:int,start_offset:bigint,end_offset:bigint>>": _EPOCH_RANGES,
    "array<struct<topic:string,topic_id:string,partition:int>>": _PARTITIONS,
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}

_SECONDS = {"hours": 3600.0, "days": 86_400.0}


@dataclass(frozen=True)
class Column:
    """A column: its name, its type in Spark's DDL, its meaning, and whether it may be null."""

    name: str
    type: str
    comment: str
    nullable: bool = False

    @property
    def spark_type(self) -> str:
        """The type for Spark's parser: a bare `timestamp` is what `spark.sql.timestampType` says."""
        return "timestamp_ltz" if self.type == "timestamp" else self.type

    @property
    def ddl(self) -> str:
        """The column in the syntax of `CREATE TABLE`."""
        required = "" if self.nullable else " NOT NULL"
        return f"`{self.name}` {self.type}{required} COMMENT '{self.comment.replace(chr(39), chr(39) * 2)}'"


@dataclass(frozen=True)
class Table:
    """A table of the cluster: the meaning of a row, its writers and its columns.

    `log_retention` is a safety setting: a writer that was paused may commit into a gap that a log clean-up left, so
    every table keeps its log for an hour or more, and after each commit the writer checks that the one before still
    exists. On a local disk at most `commits_kept` commits stay (None: all within the retention).
    `transaction_retention`: how long those `txn`s stay that may expire.
    """

    name: str
    description: str
    key: tuple[str, ...]
    writers: str
    columns: tuple[Column, ...]
    log_retention: str = "interval 1 hours"
    commits_kept: int | None = 500
    transaction_retention: str | None = None

    @property
    def log_retention_seconds(self) -> float:
        """The time for which commits stay, in seconds. The files of older versions stay as long."""
        _, number, unit = self.log_retention.split()
        return int(number) * _SECONDS[unit]

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the data files."""
        return pa.schema([pa.field(c.name, ARROW_TYPES[c.type], c.nullable) for c in self.columns])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def ddl(self) -> str:
        """The columns as Spark DDL, for `CREATE TABLE` and as the schema of a DataFrame."""
        return ", ".join(column.ddl for column in self.columns)

    @property
    def types(self) -> str:
        """Names and types only, for `createDataFrame`. They mean the same whatever the session's settings are."""
        return ", ".join(f"`{c.name}` {c.spark_type}" for c in self.columns)
