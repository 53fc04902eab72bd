"""The tables as Spark, Arrow and Delta see them, and as `schemas/README.md` describes them."""

import re
from pathlib import Path

import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakelog import schemas
from lakelog.replication.config import Config
from lakelog.replication.storage.cluster import format_broker, format_cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.tables.broker_table import BrokerTable
from lakelog.replication.storage.tables.group_tables import MemberTable
from lakelog.schemas import BROKERS, MEMBERS, STATE_TABLES, Column, Table, tables
from lakelog.schemas.table import ARROW_TYPES

TABLES = [table for table in vars(schemas).values() if isinstance(table, Table)]
README = Path(schemas.__file__).with_name("README.md").read_text("utf-8")


def test_spark_reads_the_ddl_as_arrow_does(spark):
    """One name for one type: else a file would commit and then fail in Spark."""
    for table in TABLES:
        found = StructType.fromDDL(table.ddl)
        assert [(f.name, f.nullable) for f in found] == [(c.name, c.nullable) for c in table.columns], table.name
        assert [f.metadata["comment"] for f in found] == [c.comment for c in table.columns], table.name
        assert found.simpleString() == from_arrow_schema(table.arrow).simpleString(), table.name
        assert StructType.fromDDL(table.types).simpleString() == found.simpleString(), table.name
    assert spark.createDataFrame([], schemas.LOG.ddl).columns == list(schemas.LOG.names)


def test_delta_keeps_types_nullability_and_comments(root):
    cluster, broker = StorageRoot.of(f"{root}/cluster"), StorageRoot.of(f"{root}/broker-1")
    format_broker(broker, format_cluster(cluster, Config()), 1)
    BrokerTable.open_or_create(cluster, 1)
    MemberTable.open_or_create(cluster, "g")
    folders = {BROKERS: "brokers/1", MEMBERS: "members/g"}
    for table in [*STATE_TABLES, schemas.LOG]:
        owner = broker if table.name in ("log", "replicas") else cluster
        delta = DeltaTable(owner.child(folders.get(table, table.name)).uri)
        assert delta.metadata().description == table.description
        fields = delta.schema().fields
        assert [f.metadata["comment"] for f in fields] == [c.comment for c in table.columns]
        wanted = Schema.from_arrow(table.arrow).fields
        assert [(f.name, f.type, f.nullable) for f in fields] == [(f.name, f.type, f.nullable) for f in wanted]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_table_says_what_it_is(table):
    names = [column.name for column in table.columns]
    assert table.description
    assert table.writers
    assert len(set(names)) == len(names)
    assert set(table.key) <= set(names)
    assert all(column.comment and column.comment[-1] != "." for column in table.columns)
    assert all(column.type in ARROW_TYPES for column in table.columns)


def test_every_table_is_exported_and_has_a_name_of_its_own():
    assert len({table.name for table in TABLES}) == len(TABLES) == 14
    assert {id(table) for table in vars(tables).values() if isinstance(table, Table)} == {id(table) for table in TABLES}


@pytest.mark.parametrize("table", [t for t in TABLES if t.name != "log"], ids=lambda table: table.name)
def test_keys_are_never_null(table):
    nullable = {column.name for column in table.columns if column.nullable}
    assert not nullable & set(table.key)


def readme_rows():
    rows = re.findall(r"^\| `(\w+)` \|(.+)\|$", README, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}


def test_the_readme_tells_of_every_table():
    rows = readme_rows()
    assert set(rows) == {table.name for table in TABLES}
    for table in TABLES:
        where, writers, readers, key, guard = rows[table.name]
        assert key == ", ".join(f"`{column}`" for column in table.key), table.name
        assert all((where, writers, readers, guard)), table.name
        assert writers.split(":")[0] in ("one", "many", "nobody"), table.name


def test_a_quote_in_a_comment_is_escaped():
    assert Column("a", "int", "the broker's").ddl == "`a` int NOT NULL COMMENT 'the broker''s'"
