"""What readers may see: records below the high watermark. [TM-02, FE-01]"""

from __future__ import annotations

from pyspark.sql import DataFrame

from lakelog.schemas import LOG


def committed_records(records: DataFrame, bounds: DataFrame) -> DataFrame:
    """The records whose offset lies within the bounds of their partition, in the columns of the log.

    `records` are rows of a log table; `bounds` have topic_id, partition, starting_offset and ending_offset (excluded),
    a row a partition. Partitions without bounds are left out.
    """
    within = "offset >= starting_offset AND offset < ending_offset"
    return (
        records.join(bounds.hint("broadcast"), on=["topic_id", "partition"], how="inner")
        .where(within)
        .select(*LOG.names)
    )
