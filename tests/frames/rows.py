"""Rows as Spark reads them of the tables of a cluster: a test gives the columns that matter to it."""

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from lakelog.schemas import Column
from lakelog.schemas.table import ARROW_TYPES
from lakelog.schemas.views import VIEWS
from lakelog.schemas.views.readings import READINGS

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
NOW = NOON + dt.timedelta(minutes=1)

_EMPTY = {"string": "", "int": 0, "bigint": 0, "boolean": False, "timestamp": NOON, "map<string,string>": {}}
_OF_TABLE: dict[str, dict[str, Any]] = {
    "replicas": {"role": "follower", "state": "Fetching"},
    "batches": {"observed_at": NOW},
    "brokers": {"observed_at": NOW, "committed_at": NOW - dt.timedelta(seconds=2)},
    "controller": {"observed_at": NOW, "committed_at": NOW - dt.timedelta(seconds=2)},
}


def seconds(count: float) -> dt.datetime:
    """A time after noon."""
    return NOON + dt.timedelta(seconds=count)


def epoch(leader_epoch: int, start_offset: int, chain: str) -> dict[str, Any]:
    """An entry of a lineage."""
    return {"leader_epoch": leader_epoch, "start_offset": start_offset, "chain": chain}


def table(spark: SparkSession, name: str, *rows: dict[str, Any]) -> DataFrame:
    """Rows of a table in `READINGS`. Columns that are not given are empty, or null if they may be."""
    return _frame(spark, READINGS[name].columns, [{**_OF_TABLE.get(name, {}), **row} for row in rows])


def view(spark: SparkSession, name: str, *rows: dict[str, Any]) -> DataFrame:
    """Rows of a view."""
    return _frame(spark, VIEWS[name].columns, rows)


def _frame(spark: SparkSession, columns: Sequence[Column], rows: Iterable[dict[str, Any]]) -> DataFrame:
    empty = {c.name: None if c.nullable else _EMPTY.get(c.type, []) for c in columns}
    schema = pa.schema([pa.field(c.name, ARROW_TYPES[c.type]) for c in columns])
    whole = [{**empty, "topic": "orders", "topic_id": "id", **row} for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(whole, schema))


def has(frame: DataFrame, columns: str, *rows: tuple[Any, ...]) -> None:
    """Fails unless the frame has these values in these columns, in any order of rows."""
    found = frame.select(*columns.split())
    expected = frame.sparkSession.createDataFrame(list(rows), found.schema)
    assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)
