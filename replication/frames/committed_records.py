"""Selects the records that readers may see: those below the high watermark. [TM-02, FE-01]"""

from __future__ import annotations

from pyspark.sql import DataFrame

from lakelog.schemas import LOG


def committed_records(records: DataFrame, bounds: DataFrame) -> DataFrame:
    """The records whose offset is within the bounds of their partition. Columns: `schemas.LOG`.

    `records` are rows of a log table (`schemas.LOG`). `bounds` has one row a partition, with the columns topic_id
    (string), partition (int), starting_offset and ending_offset (bigint; the latter is excluded). Partitions without
    bounds are left out.
    """
    within = "`offset` >= starting_offset AND `offset` < ending_offset"
    return (
        records.join(bounds.hint("broadcast"), on=["topic_id", "partition"], how="inner")
        .where(within)
        .select(*LOG.names)
    )
