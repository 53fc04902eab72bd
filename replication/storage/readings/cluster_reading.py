"""The rows of one kind of table of a cluster, now or at an earlier time, and the Spark data source that returns them.

Rows of a broker whose root cannot be read are left out, and the row of the broker has the error. So a dead broker or an
unreachable root hides no other one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException
from lakelog.replication.properties import Setting
from lakelog.replication.protocol.record_batch import BatchHeader
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.table_history import commit_times, table_at
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.broken_segments import BrokenSegment, read_segments
from lakelog.replication.storage.log.segment import Segment
from lakelog.replication.storage.readings.metadata_history import ClusterEvents, event_rows, metadata_changes
from lakelog.replication.storage.root_identity import check_identity
from lakelog.replication.storage.tables.broker_table import UNREGISTERED, broker_ids
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import BROKERS, LOG, METADATA, REPLICAS, STATE_TABLES, Table
from lakelog.schemas.views.readings import BATCHES, EVENTS, METADATA_CHANGES, READINGS

_OF_HEADER = ("topic", "topic_id", "partition", "leader_epoch", "base_offset", "last_offset", "max_timestamp",
              "producer_id")  # fmt: skip
_READERS = 8
OF_BROKERS = (REPLICAS.name, BATCHES.name)
_TABLES = {table.name: table for table in STATE_TABLES}
FORMAT = "lakelog_tables"
_numbers = count(1)
_VARIABLE = re.compile(r"LAKELOG_STORAGE_(\d+|CLUSTER)_(\w+)", re.IGNORECASE)


@dataclass(frozen=True)
class ClusterReading:
    """The tables of a cluster at `as_of`, in seconds since the epoch; None: as they are when they are read."""

    uri: str
    config: Config
    as_of: float | None = None

    def brokers(self) -> list[int]:
        """The brokers that have ever registered, one that cannot be read too. Raises as `Cluster.open`."""
        return broker_ids(self._cluster().root)

    def read(self, name: str, broker_id: int | None = None) -> Iterator[pa.Table]:
        """The rows of a table of `READINGS`; of one broker for those `OF_BROKERS`, where a root that cannot be read has
        no rows.

        Raises as `Cluster.open`, and KafkaStorageException if the table cannot be read, or if its history does not
        reach back to `as_of`.
        """
        observed_at, cluster = self._now(), self._cluster()
        if name == METADATA_CHANGES.name:
            yield from self._changes(cluster)
        elif name == EVENTS.name:
            yield self._events(cluster)
        elif name == BROKERS.name:
            yield self._registrations(cluster, observed_at)
        elif broker_id is None:
            yield self._rows(cluster.root.child(name), name, observed_at)
        else:
            try:
                yield self._of_broker(cluster, name, broker_id, observed_at)
            except LakelogException:
                yield READINGS[name].arrow.empty_table()

    def check(self, name: str) -> None:
        """Raises KafkaStorageException if a table of `READINGS` has no history back to `as_of`. One broker's history is
        enough for the tables OF_BROKERS."""
        if name == BROKERS.name:
            self._check_registrations()
        elif name in OF_BROKERS:
            self._check_any_broker(name)
        else:
            next(iter(self.read(name)), None)

    def _check_registrations(self) -> None:
        """A broker whose table begins later had not registered yet."""
        for broker_id in self.brokers():
            folder = self._cluster().root.child(BROKERS.name, str(broker_id))
            if 0 not in commit_times(folder):
                table_at(folder, self.as_of)

    def _check_any_broker(self, name: str) -> None:
        errors, cluster = [], self._cluster()
        for broker_id in broker_ids(cluster.root):
            try:
                self._of_broker(cluster, name, broker_id, self._now())
                return
            except LakelogException as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _cluster(self) -> Cluster:
        return Cluster.open(self.uri, self.config)

    def _now(self) -> float:
        return time.time() if self.as_of is None else self.as_of

    def _events(self, cluster: Cluster) -> pa.Table:
        found = event_rows(ClusterEvents(cluster.root).read_on(self.as_of))
        if found.num_rows == 0 and self.as_of is not None:
            table_at(cluster.root.child(METADATA.name), self.as_of)  # raises the error with the oldest time
        return found

    def _changes(self, cluster: Cluster) -> Iterator[pa.Table]:
        is_there = False
        for table in metadata_changes(cluster.root, self.as_of):
            is_there = True
            yield table
        if not is_there and self.as_of is not None:
            table_at(cluster.root.child(METADATA.name), self.as_of)  # raises the error with the oldest time

    def _registrations(self, cluster: Cluster, observed_at: float) -> pa.Table:
        """The rows of all registrations that can be read."""
        folders = [(broker_id, cluster.root.child(BROKERS.name, str(broker_id))) for broker_id in self.brokers()]
        found = in_threads(lambda folder: self._registration(cluster, folder[1], observed_at), folders, _READERS)
        return pa.concat_tables([READINGS[BROKERS.name].arrow.empty_table(), *found])

    def _registration(self, cluster: Cluster, folder: StorageRoot, observed_at: float) -> pa.Table:
        schema = READINGS[BROKERS.name].arrow
        try:
            rows = [row for row in _dated(folder, BROKERS, self.as_of, observed_at) if row["root"] != UNREGISTERED]
        except LakelogException:
            rows = []
        return pa.Table.from_pylist([{**row, "root_error": self._root_error(cluster, row)} for row in rows], schema)

    def _root_error(self, cluster: Cluster, row: dict[str, Any]) -> str | None:
        try:
            root = cluster.storage_of(row["broker_id"], row["root"])
            check_identity(root, cluster.cluster_id, row["broker_id"])
            table_at(root.child(REPLICAS.name), self.as_of)
        except LakelogException as error:
            return f"{error.name}: {error}"
        return None

    def _of_broker(self, cluster: Cluster, name: str, broker_id: int, observed_at: float) -> pa.Table:
        root = cluster.broker_root(broker_id)
        check_identity(root, cluster.cluster_id, broker_id)
        if name == BATCHES.name:
            return log_batches(root, broker_id, self.as_of, observed_at)
        return self._rows(root.child(name), name, observed_at)

    def _rows(self, root: StorageRoot, name: str, observed_at: float) -> pa.Table:
        return pa.Table.from_pylist(_dated(root, _TABLES[name], self.as_of, observed_at), READINGS[name].arrow)


def _dated(root: StorageRoot, table: Table, at: float | None, observed_at: float) -> list[dict[str, Any]]:
    """The rows of a state table, and when they were committed and read."""
    found: StateTable[Any]
    found, committed_at = StateTable.as_of_at(root, table, at)
    when = {
        "table_version": found.version, "committed_at": int(committed_at * 1e6), "observed_at": int(observed_at * 1e6)
    }  # fmt: skip
    return [{**row, **when} for row in found.rows]


def log_batches(broker: StorageRoot, broker_id: int, at: float | None, observed_at: float) -> pa.Table:
    """One row for each batch of a broker's log, and one for each file without batches or that cannot be read; columns
    of `BATCHES`. `at`: as for `table_at`.

    Raises InconsistentClusterIdException if there is no log, KafkaStorageException.
    """
    root = broker.child(LOG.name)
    segments = read_segments(root, table_at(root, at).log.active_files())
    common = {"broker_id": broker_id, "observed_at": int(observed_at * 1e6)}
    rows = [{**common, **row} for segment in segments for row in _batch_rows(segment)]
    return pa.Table.from_pylist(rows, BATCHES.arrow)


def _batch_rows(segment: Segment | BrokenSegment) -> list[dict[str, Any]]:
    file = {"file": segment.file.name, "file_bytes": segment.file.size}
    if isinstance(segment, BrokenSegment):
        return [{**file, "error": segment.fault}]
    return [{**file, **_header(header)} for header in segment.headers] or [file]


def _header(header: BatchHeader) -> dict[str, Any]:
    retained = header.retained
    return {
        **{name: getattr(header, name) for name in _OF_HEADER}, "records": retained.records, "bytes": retained.bytes,
    }  # fmt: skip


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
                # Spark's columns may be null, so it refuses a schema in which they may not be null.
                yield pa.RecordBatch.from_arrays(batch.columns, names=batch.schema.names)
