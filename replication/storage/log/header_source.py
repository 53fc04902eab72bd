"""The data source by which Spark runs a stream of batch headers, and what the source knows of roots.

Options of a source stand in plans, and so in logs, in event logs and in Spark's UI: they name roots by their URIs and
hold no credentials. Those are in what the source's class holds, which Spark sends to its workers as bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import count
from typing import ClassVar
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.header_stream import UNBOUNDED, HeaderStream, RecordBatchReader
from lakelog.schemas import RECORD_BATCHES

FORMAT = "lakelog_record_batches"

# The sources that each session has, by the roots that they know: Spark warns when one is registered twice.
_registered: WeakKeyDictionary[SparkSession, dict[frozenset[tuple[object, ...]], str]] = WeakKeyDictionary()
_registering = threading.Lock()
_numbers = count(1)


def read_headers(spark: SparkSession, stream: HeaderStream) -> DataFrame:
    """A streaming DataFrame of header rows (`schemas.RECORD_BATCHES`), from the newest commit on."""
    options = {
        "source": stream.source.uri,
        "leader": str(stream.leader),
        "cluster": stream.cluster.uri if stream.cluster else "",
        "wake": stream.wake.uri if stream.wake else "",
        "wakeName": stream.wake_name,
        "maxBytes": str(stream.max_bytes),
        "pollIntervalMs": str(stream.poll_interval_ms),
        "waitMaxMs": str(stream.wait_max_ms),
    }
    roots = [root for root in (stream.source, stream.cluster, stream.wake) if root]
    return spark.readStream.format(_format_for(spark, roots)).options(**options).load()


def _format_for(spark: SparkSession, roots: Sequence[StorageRoot]) -> str:
    """The name of a source that has the credentials and deadlines of these roots, registered at its first use."""
    known = {root.uri: root for root in roots if not root.is_local}
    key = frozenset((root.uri, root.timeout_ms, *sorted(root.options.items())) for root in known.values())
    with _registering:
        formats = _registered.setdefault(spark, {})
        if key not in formats:
            name = f"{FORMAT}_{next(_numbers)}" if known else FORMAT
            spark.dataSource.register(_source_with(name, known))
            formats[key] = name
        return formats[key]


def _source_with(format_name: str, known: Mapping[str, StorageRoot]) -> type[RecordBatchSource]:
    class Source(RecordBatchSource):  # of a function, so that it is pickled with what it holds, not by its name
        roots = known

        @classmethod
        def name(cls) -> str:
            return format_name

    return Source


class RecordBatchSource(DataSource):
    """`spark.readStream.format("lakelog_record_batches")`. Options: source, leader, cluster, wake, wakeName, maxBytes,
    pollIntervalMs, waitMaxMs; `source`, `cluster` and `wake` are URIs, and `roots` has what else belongs to them."""

    roots: ClassVar[Mapping[str, StorageRoot]] = {}

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """The header rows' columns as DDL."""
        return RECORD_BATCHES.types

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802 (Spark's name)
        """The reader: headers are few and small, so that the driver reads them itself."""
        options = self.options
        return RecordBatchReader(
            HeaderStream(
                self._root(options["source"]),
                int(options["leader"]),
                self._root(options["cluster"]) if options.get("cluster") else None,
                self._root(options["wake"]) if options.get("wake") else None,
                options.get("wakeName", ""),
                int(options.get("maxBytes", UNBOUNDED)),
                int(options.get("pollIntervalMs", 0)),
                int(options.get("waitMaxMs", 0)),
            )
        )

    def _root(self, uri: str) -> StorageRoot:
        found = StorageRoot.of(uri)
        return self.roots.get(found.uri, found)
