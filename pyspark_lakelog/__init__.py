"""Spark finds Lakelog's data source here, under the name "lakelog": it looks for modules named `pyspark_*`.

Spark imports this module when a session first uses any format, so it imports nothing more than it must.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """`format("lakelog")`: reads and writes topics of a cluster, as Spark's Kafka source and sink do."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "lakelog"

    def schema(self) -> str:
        """The columns as DDL. Raises InvalidConfigurationException for wrong options."""
        from lakelog.replication.clients.source.topic_source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch read."""
        from lakelog.replication.clients.source.topic_source import reader_of

        return reader_of(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """The stream."""
        from lakelog.replication.clients.source.topic_source import stream_reader_of

        return stream_reader_of(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The batch write."""
        from lakelog.replication.clients.sink.topic_sink import writer_of

        return writer_of(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 (Spark's name)
        """The streaming write."""
        from lakelog.replication.clients.sink.topic_sink import stream_writer_of

        return stream_writer_of(self.options, schema)
