"""Spark finds Lakelog's data source here, under the name "lakelog": it looks for modules named `pyspark_*`.

Spark imports this module when a session first uses any format, so it imports nothing more than it must.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """`format("lakelog")`: reads topics of a cluster, with the options and columns of Spark's Kafka source."""

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
