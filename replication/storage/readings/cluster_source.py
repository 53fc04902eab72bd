"""The Spark data source that reads the tables of a cluster each time that a query runs.

A view over it shows the present state, and brokers that have registered since. It reads with pyarrow, so a cluster in
an object store needs no jar. Delta's own reader has no DataFrame of commit times, which heartbeats are, and fails as a
whole if one broker's root is out of reach.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakelog.replication.properties import Setting
from lakelog.replication.storage.readings.cluster_reading import OF_BROKERS, ClusterReading
from lakelog.schemas.views.readings import READINGS

FORMAT = "lakelog_tables"
_numbers = count(1)
_VARIABLE = re.compile(r"LAKELOG_STORAGE_(\d+|CLUSTER)_(\w+)", re.IGNORECASE)


def table_loader(spark: SparkSession, reading: ClusterReading) -> Callable[[str], DataFrame]:
    """A function from the name of a table in `READINGS` to its DataFrame, which is read again by each query."""
    name = f"{FORMAT}_{next(_numbers)}"
    config = replace(reading.config, storage={**reading.config.storage, **_options_in_environment()})
    spark.dataSource.register(_source_of(name, replace(reading, config=config)))
    return lambda table: spark.read.format(name).option("table", table).load()


def _options_in_environment() -> dict[str, Setting]:
    """The storage options in this process's environment, as settings: Spark's workers have another environment."""
    named = {name: _VARIABLE.fullmatch(name) for name in os.environ}
    return {f"storage.{m[1].lower()}.{m[2]}": Setting(os.environ[name], name) for name, m in named.items() if m}


def _source_of(format_name: str, reading: ClusterReading) -> type[DataSource]:
    class OfCluster(ClusterTablesSource):  # a local class, so that Spark pickles its content and not its name
        @classmethod
        def name(cls) -> str:
            return format_name

        @property
        def reading(self) -> ClusterReading:
            return reading

    return OfCluster


class ClusterTablesSource(DataSource):
    """Tables of one cluster. Option: table, a name in `READINGS`. The class holds the cluster's address and storage
    options, which no plan shows."""

    @property
    def reading(self) -> ClusterReading:
        """The cluster to read."""
        raise TypeError(f"{type(self).__name__} has no cluster")

    def schema(self) -> str:
        """The columns as DDL."""
        return READINGS[self.options["table"]].types

    def reader(self, schema: StructType) -> DataSourceReader:
        """Spark asks for it each time that a query runs."""
        return _Reader(self.reading, self.options["table"])


@dataclass
class _OfBroker(InputPartition):
    broker_id: int | None

    def __post_init__(self) -> None:
        super().__init__(self.broker_id)


class _Reader(DataSourceReader):
    """One task a table, and one a broker for the tables of brokers."""

    def __init__(self, reading: ClusterReading, table: str) -> None:
        self._reading = reading
        self._table = table

    def partitions(self) -> list[InputPartition]:
        brokers = self._reading.brokers() if self._table in OF_BROKERS else [None]
        return [_OfBroker(broker_id) for broker_id in brokers]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _OfBroker), "a partition that it has planned"
        for table in self._reading.read(self._table, partition.broker_id):
            for batch in table.combine_chunks().to_batches():
                # Spark's columns may be null, so it refuses a schema that says that they are not.
                yield pa.RecordBatch.from_arrays(batch.columns, names=batch.schema.names)
