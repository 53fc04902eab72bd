"""The rows of one kind of table of a cluster, now or at an earlier time, and the Spark data source that returns them.

Rows of a broker whose root cannot be read are left out, and the row of the broker has the error. So a dead broker or an
unreachable root hides no other one.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakelog.replication.config import Config
from lakelog.replication.errors import CorruptRecordException, KafkaStorageException, LakelogException
from lakelog.replication.properties import Setting
from lakelog.replication.protocol.record_batch import BatchHeader, TopicIdPartition
from lakelog.replication.storage.cluster import Cluster
from lakelog.replication.storage.delta.commit import Commit
from lakelog.replication.storage.delta.commit_format import is_commit, read_commit
from lakelog.replication.storage.delta.delta_log import DeltaLog
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.delta.store_errors import reason
from lakelog.replication.storage.in_threads import in_threads
from lakelog.replication.storage.log.broken_segments import BrokenSegment, read_segments
from lakelog.replication.storage.log.segment import Segment
from lakelog.replication.storage.root_identity import check_identity
from lakelog.replication.storage.tables.broker_table import broker_ids
from lakelog.replication.storage.tables.state_table import StateTable
from lakelog.schemas import BROKERS, LOG, METADATA, REPLICAS, STATE_TABLES, Table
from lakelog.schemas.views.readings import BATCHES, METADATA_CHANGES, READINGS

_TICK = 0.001  # s between the times of two commits that a store has written at the same time

_READERS_OF_COMMITS = 8
_AT_ONCE = 64  # versions in memory
_UNREADABLE = FileNotFoundError, CorruptRecordException
_OF_HEADER = ("topic", "topic_id", "partition", "leader_epoch", "base_offset", "last_offset", "max_timestamp", "bytes",
              "producer_id")  # fmt: skip
_READERS = 8
OF_BROKERS = (REPLICAS.name, BATCHES.name)
_TABLES = {table.name: table for table in STATE_TABLES}
FORMAT = "lakelog_tables"
_numbers = count(1)
_VARIABLE = re.compile(r"LAKELOG_STORAGE_(\d+|CLUSTER)_(\w+)", re.IGNORECASE)


class DatedLog(NamedTuple):
    """A table at a version, and the time of its commit in seconds since the epoch, by the clock of the store."""

    log: DeltaLog
    committed_at: float


@dataclass(frozen=True)
class ClusterReading:
    """The tables of a cluster at `as_of`, in seconds since the epoch; None: as they are when they are read."""

    uri: str
    config: Config
    as_of: float | None = None

    def brokers(self) -> list[int]:
        """The brokers that have a registration, also one that cannot be read. Raises as `Cluster.open`."""
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
            rows = _dated(folder, BROKERS, self.as_of, observed_at)
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
    log, committed_at = table_at(root, at)
    try:
        rows = StateTable(log, table).rows
    except FileNotFoundError as error:
        raise KafkaStorageException(f"{root.uri}: version {log.version} has lost a file: {error}") from error
    when = {
        "table_version": log.version, "committed_at": int(committed_at * 1e6), "observed_at": int(observed_at * 1e6)
    }  # fmt: skip
    return [{**row, **when} for row in rows]


def commit_times(root: StorageRoot) -> dict[int, float]:
    """The time of each commit that is still there, oldest first, in seconds since the epoch: later versions have later
    times.

    A commit before a gap is of a writer that came too late, and does not count. Raises KafkaStorageException.
    """
    written = {int(name[:20]): at for name, at in root.child("_delta_log").modified().items() if is_commit(name)}
    first = max((version for version in written if version - 1 not in written), default=0)
    times: dict[int, float] = {}
    for version in range(first, first + len(written)):
        if version in written:
            times[version] = max(written[version], times.get(version - 1, 0.0) + _TICK)
    return times


def table_at(root: StorageRoot, at: float | None) -> DatedLog:
    """The table at a time in seconds since the epoch; None: its newest version.

    Raises InconsistentClusterIdException if there is no table, KafkaStorageException if it cannot be read, or if its
    history does not reach back to that time.
    """
    if at is None:
        log, times = DeltaLog.open(root), commit_times(root)
        return DatedLog(log, times.get(log.version, max(times.values(), default=0.0)))
    times = commit_times(root)
    version = max((version for version, written in times.items() if written <= at), default=None)
    if version is None:
        oldest = f"its oldest commit is of {utc(min(times.values()))}" if times else "it has no commit"
        raise KafkaStorageException(f"{root.uri}: its history does not reach back to {utc(at)}: {oldest}")
    try:
        return DatedLog(DeltaLog(root, root.open_table(version)), times[version])
    except (DeltaError, OSError) as error:
        raise KafkaStorageException(
            f"{root.uri}: its history does not reach back to {utc(at)}: version {version} cannot be read: "
            f"{reason(error)}"
        ) from error


def utc(seconds: float) -> str:
    """A time in seconds since the epoch, for people."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds")


def metadata_changes(cluster: StorageRoot, at: float | None = None) -> Iterator[pa.Table]:
    """The rows of each version that its commit changed, oldest first; columns of `METADATA_CHANGES`. `at`: no version
    that is younger than that, in seconds since the epoch.

    Each version has all rows of the table, so the oldest one that can be read is complete. History begins after the
    last version that cannot be read. Raises KafkaStorageException.
    """
    root = cluster.child(METADATA.name)
    table = StateTable.open(root, METADATA)
    versions = _Versions()
    kept = iter([(version, then) for version, then in commit_times(root).items() if at is None or then <= at])
    while chunk := list(islice(kept, _AT_ONCE)):
        read = in_threads(lambda dated: _read(root, table, dated[0]), chunk, _READERS_OF_COMMITS)
        for (version, then), found in zip(chunk, read, strict=True):
            if found is None or version == 0:
                versions = _Versions(is_whole=found is not None)
            if found is not None and found[1] is not None:
                yield from versions.changed(*found, then)


def _read(root: StorageRoot, table: StateTable, version: int) -> tuple[Commit, pa.Table | None] | None:
    """A commit and its rows; no rows if it changes none. None if it cannot be read."""
    try:
        commit = read_commit(root, version)
        files = [table.read_file(file) for file in commit.adds]
    except _UNREADABLE:
        return None
    changes_rows = bool(commit.adds or commit.removes)
    return commit, pa.concat_tables([METADATA.arrow.empty_table(), *files]) if changes_rows else None


class _Versions:
    """The rows of the version before. `is_whole`: there was no version before those that it is given."""

    def __init__(self, is_whole: bool = False) -> None:
        self._is_first = not is_whole
        self._rows = METADATA.arrow.empty_table()
        self._known: dict[TopicIdPartition, tuple[int, int]] = {}  # partition epoch, and the place of the row

    def changed(self, commit: Commit, rows: pa.Table, then: float) -> Iterator[pa.Table]:
        """The rows that a commit has changed or removed."""
        keys = map(TopicIdPartition, rows["topic_id"].to_pylist(), rows["partition"].to_pylist())
        epochs = rows["partition_epoch"].to_pylist()
        known = {key: (epoch, place) for place, (key, epoch) in enumerate(zip(keys, epochs, strict=True))}
        fresh = [place for key, (epoch, place) in known.items() if self._known.get(key, (None,))[0] != epoch]
        removed = [place for key, (_, place) in self._known.items() if key not in known]
        if fresh:
            yield _dated_change(rows.take(fresh), commit, then, self._is_first, False)
        if removed:
            yield _dated_change(self._rows.take(removed), commit, then, False, True)
        self._rows, self._known, self._is_first = rows, known, False


def _dated_change(rows: pa.Table, commit: Commit, then: float, is_first: bool, is_removed: bool) -> pa.Table:
    """Changed rows with the columns of their commit."""
    change = {
        "version": commit.version, "committed_at": int(then * 1e6), "is_first": is_first, "is_removed": is_removed,
        "who": commit.info.get("who"), "why": commit.info.get("why"),
    }  # fmt: skip
    fields = [METADATA_CHANGES.arrow.field(name) for name in change]
    columns = [
        pa.array([value] * rows.num_rows, field.type) for value, field in zip(change.values(), fields, strict=True)
    ]
    return pa.table([*rows.columns, *columns], METADATA_CHANGES.arrow)


def log_batches(broker: StorageRoot, broker_id: int, at: float | None, observed_at: float) -> pa.Table:
    """A row a batch of a broker's log, and a row a file without batches or that cannot be read; columns of `BATCHES`.
    `at`: as for `table_at`.

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
    return {name: getattr(header, name) for name in _OF_HEADER}


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
