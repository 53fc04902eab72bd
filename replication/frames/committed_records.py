"""The records that readers may see: those below the high watermark. [TM-02, FE-01]"""

from __future__ import annotations

from pyspark.sql import DataFrame

from lakelog.schemas import LOG


def committed_records(records: DataFrame, bounds: DataFrame) -> DataFrame:
    """The records whose offset is within the bounds of their partition. Columns: `schemas.LOG`.

    `records` are rows of a log table. `bounds` has the columns topic_id, partition, starting_offset and ending_offset
    (excluded), with one row a partition. It leaves out partitions without bounds.
    """
    within = "offset >= starting_offset AND offset < ending_offset"
    return (
        records.join(bounds.hint("broadcast"), on=["topic_id", "partition"], how="inner")
        .where(within)
        .select(*LOG.names)
    )
