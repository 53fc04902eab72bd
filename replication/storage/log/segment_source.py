"""The Spark data source of a stream of new segments.

Options of a source appear in plans, logs, event logs and Spark's UI, so they name the root by URI and hold no
credentials. The source's class holds the credentials, and Spark sends the class to its workers as bytes.
"""

from __future__ import annotations

import threading
from itertools import count
from typing import ClassVar
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.segment_stream import UNBOUNDED, SegmentStream, SegmentStreamReader
from lakelog.schemas import NEW_SEGMENTS

FORMAT = "lakelog_new_segments"

# The formats of each session by their streams. Spark warns if a format is registered twice. Streams share none, because
# Spark changes the environment in a registered function while a query starts, and another query may serialize it then.
_registered: WeakKeyDictionary[SparkSession, dict[SegmentStream, str]] = WeakKeyDictionary()
_registering = threading.Lock()
_numbers = count(1)


def stream_segments(spark: SparkSession, stream: SegmentStream) -> DataFrame:
    """A streaming DataFrame of a leader's segments, from the newest commit on. Columns: `schemas.NEW_SEGMENTS`."""
    options = {
        "source": stream.source.uri,
        "leader": str(stream.leader),
        "reader": stream.reader,
        "maxBytes": str(stream.max_bytes),
        "pollIntervalMs": str(stream.poll_interval_ms),
        "waitMaxMs": str(stream.wait_max_ms),
    }
    return spark.readStream.format(_format_for(spark, stream)).options(**options).load()


def _format_for(spark: SparkSession, stream: SegmentStream) -> str:
    """The format of a stream: a source with the credentials and time limits of its root, registered at its first
    use."""
    with _registering:
        formats = _registered.setdefault(spark, {})
        if stream not in formats:
            name = f"{FORMAT}_{next(_numbers)}"
            spark.dataSource.register(_source_with(name, None if stream.source.is_local else stream.source))
            formats[stream] = name
        return formats[stream]


def _source_with(format_name: str, known: StorageRoot | None) -> type[SegmentStreamSource]:
    class Source(SegmentStreamSource):  # a local class, so that Spark pickles its content and not its name
        root = known

        @classmethod
        def name(cls) -> str:
            return format_name

    return Source


class SegmentStreamSource(DataSource):
    """`spark.readStream.format("lakelog_new_segments")`. Options: source (URI), leader, reader, maxBytes (bytes),
    pollIntervalMs (ms), waitMaxMs (ms). `root` has the options of the source's root; None if it has none."""

    root: ClassVar[StorageRoot | None] = None

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """The columns as DDL."""
        return NEW_SEGMENTS.types

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802 (Spark's name)
        """The reader. It runs in a Python process beside the driver, without tasks."""
        options = self.options
        return SegmentStreamReader(
            SegmentStream(
                self.root or StorageRoot.of(options["source"]),
                int(options["leader"]),
                options.get("reader", ""),
                int(options.get("maxBytes", UNBOUNDED)),
                int(options.get("pollIntervalMs", 0)),
                int(options.get("waitMaxMs", 0)),
            )
        )
