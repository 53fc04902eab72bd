"""Expressions and joins that views and readers share."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakelog.schemas import LOG
from lakelog.schemas.views import View

PARTITION = ("topic_id", "partition")


def described(frame: DataFrame, view: View) -> DataFrame:
    """The columns of a view, with their types and comments, in order. A column that is missing is null."""
    return frame.select(
        *(
            (F.col(c.name) if c.name in frame.columns else F.lit(None)).cast(c.spark_type).alias(
                c.name, metadata={"comment": c.comment}
            )
            for c in view.columns
        )
    )  # fmt: skip


def leader_or_null(leader: Column) -> Column:
    """The id of a leader; null where there is none."""
    return F.when(leader >= 0, leader)


def missing_records(end: Column, offset: Column) -> Column:
    """The number of records from `offset` to before `end`, at least 0; null if either is not known."""
    return F.when(end.isNotNull() & offset.isNotNull(), F.greatest(F.lit(0), end - offset))


def count_where(condition: Column) -> Column:
    """The number of rows for which a condition holds."""
    return F.count(F.when(condition, 1))


def milliseconds_between(start: Column, end: Column) -> Column:
    """The time between two timestamps in ms."""
    return (F.unix_micros(end) - F.unix_micros(start)) / 1000


def leader_rows(metadata: DataFrame, replicas: DataFrame) -> DataFrame:
    """The replica row of each partition's leader, if it has published that it leads under the partition's leader epoch.

    Columns: topic_id, partition, and those of `schemas.REPLICAS` that a view needs, with the prefix `leader_`. [HW-02]
    """
    taken = ("log_start_offset", "log_end_offset", "high_watermark", "epochs", "chain")
    rows = replicas.where("role = 'leader'").select(
        *PARTITION, F.col("broker_id").alias("leader"), "leader_epoch", *(F.col(c).alias(f"leader_{c}") for c in taken)
    )
    return metadata.select(*PARTITION, "leader", "leader_epoch").join(
        rows, on=[*PARTITION, "leader", "leader_epoch"], how="inner"
    ).drop("leader", "leader_epoch")  # fmt: skip


def committed_records(records: DataFrame, bounds: DataFrame) -> DataFrame:
    """The records whose offset is within the bounds of their partition. Columns: `schemas.LOG`.

    `records` are rows of a log table (`schemas.LOG`). `bounds` has one row a partition, with the columns topic_id
    (string), partition (int), starting_offset and ending_offset (bigint; the latter is excluded). Partitions without
    bounds are left out.
    """
    within = "`offset` >= starting_offset AND `offset` < ending_offset"
    return records.join(bounds.hint("broadcast"), on=[*PARTITION], how="inner").where(within).select(*LOG.names)
