"""The Spark data source of a stream that tells of new segments."""

from __future__ import annotations

import threading
from itertools import count
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from lakelog.replication.storage.log.segment_stream import SegmentStream, SegmentStreamReader
from lakelog.schemas import NEW_SEGMENTS

FORMAT = "lakelog_new_segments"

# The formats of each session by the names of their queries. Spark warns if a format is registered twice. Queries share
# none, because Spark changes the environment in a registered function while a query starts, and another query may
# serialize it then.
_registered: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()
_registering = threading.Lock()
_numbers = count(1)


def stream_segments(spark: SparkSession, stream: SegmentStream) -> DataFrame:
    """A streaming DataFrame with a row for each time that the stream's bell has rung, or for several at once. Columns:
    `schemas.NEW_SEGMENTS`."""
    options = {"reader": stream.reader, "bell": stream.bell, "waitMaxMs": str(stream.wait_max_ms)}
    return spark.readStream.format(_format_for(spark, stream.reader)).options(**options).load()


def _format_for(spark: SparkSession, reader: str) -> str:
    """The format of a query, registered at its first use."""
    with _registering:
        formats = _registered.setdefault(spark, {})
        if reader not in formats:
            name = f"{FORMAT}_{next(_numbers)}"
            spark.dataSource.register(_source_with(name))
            formats[reader] = name
        return formats[reader]


def _source_with(format_name: str) -> type[SegmentStreamSource]:
    class Source(SegmentStreamSource):  # a local class, so that Spark pickles its content and not its name
        @classmethod
        def name(cls) -> str:
            return format_name

    return Source


class SegmentStreamSource(DataSource):
    """`spark.readStream.format("lakelog_new_segments")`. Options: reader (name of the query), bell (path of a named
    pipe), waitMaxMs (ms)."""

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
            SegmentStream(options.get("reader", ""), options.get("bell", ""), int(options.get("waitMaxMs", 0)))
        )
