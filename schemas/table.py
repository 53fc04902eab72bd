"""The vocabulary in which the tables are described: columns as Spark DDL, read by Arrow, Delta and Spark alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_EPOCHS = pa.list_(pa.struct([("leader_epoch", pa.int32()), ("start_offset", pa.int64()), ("chain", pa.string())]))
_EPOCH_RANGES = pa.list_(
    pa.struct([("leader_epoch", pa.int32()), ("start_offset", pa.int64()), ("end_offset", pa.int64())])
)

# Spark's name of a type -> Arrow's. Delta keeps microseconds: a file with nanoseconds commits and then fails in Spark.
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
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


@dataclass(frozen=True)
class Column:
    """A column: its name, its type in Spark's DDL, what it means, and whether it may be null."""

    name: str
    type: str
    comment: str
    nullable: bool = False

    @property
    def ddl(self) -> str:
        """The column as it stands in `CREATE TABLE`."""
        required = "" if self.nullable else " NOT NULL"
        return f"`{self.name}` {self.type}{required} COMMENT '{self.comment.replace(chr(39), chr(39) * 2)}'"


@dataclass(frozen=True)
class Table:
    """A table of the cluster: what a row is, who writes it, and its columns.

    `configuration` holds Delta's table properties. Retention is a safety setting, not housekeeping: a writer that was
    paused may commit into the hole that a log clean-up has left, so every table keeps its log for an hour or more. On
    a local disk, where every commit lists the log, no more than `commits_kept` are kept (None: all of that time); there
    a writer looks after each commit whether the one before is still in its place.
    """

    name: str
    description: str
    key: tuple[str, ...]
    writers: str
    columns: tuple[Column, ...]
    log_retention: str = "interval 1 hours"
    commits_kept: int | None = 500

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema that data files are written with."""
        return pa.schema([pa.field(c.name, ARROW_TYPES[c.type], c.nullable) for c in self.columns])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def ddl(self) -> str:
        """The columns as Spark DDL: usable in `CREATE TABLE` and as the schema of a DataFrame."""
        return ", ".join(column.ddl for column in self.columns)

    @property
    def types(self) -> str:
        """Names and types alone, for `createDataFrame`."""
        return ", ".join(f"`{c.name}` {c.type}" for c in self.columns)
