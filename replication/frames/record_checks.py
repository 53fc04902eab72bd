"""Compares the records of replicas by checksum, so no row leaves the executors."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_PARTITION = ("topic_id", "partition")
_CONTENT = ("key", "value", "offset", "timestamp", "timestampType", "headers", "leader_epoch")


def partition_checksums(records: DataFrame) -> DataFrame:
    """One row a partition: topic_id, partition, records, distinct_offsets, first_offset, last_offset, checksum.

    `records` are rows of a log table. The checksum is the sum of a hash over every record's columns, so equal records
    in any order give equal sums.
    """
    return records.groupBy(*_PARTITION).agg(
        F.count("*").alias("records"),
        F.countDistinct("offset").alias("distinct_offsets"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.sum(F.xxhash64(*_CONTENT).cast("decimal(38,0)")).alias("checksum"),
    )


def differing_partitions(one: DataFrame, other: DataFrame) -> DataFrame:
    """The partitions whose checksums differ, including those that only one side has.

    Both arguments are results of `partition_checksums`. The result has topic_id and partition, and the columns records,
    first_offset, last_offset and checksum of each side with the prefixes `one_` and `other_`.
    """
    compared = ("records", "first_offset", "last_offset", "checksum")
    left = one.select(*_PARTITION, *(F.col(name).alias(f"one_{name}") for name in compared))
    right = other.select(*_PARTITION, *(F.col(name).alias(f"other_{name}") for name in compared))
    agree = " AND ".join(f"one_{name} <=> other_{name}" for name in compared)
    return left.join(right, on=list(_PARTITION), how="full").where(f"NOT ({agree})")
