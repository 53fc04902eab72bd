"""Do replicas hold the same records? Compared by checksum, so that not a row leaves the executors."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_PARTITION = ("topic_id", "partition")
_CONTENT = ("key", "value", "offset", "timestamp", "timestampType", "headers", "leader_epoch")


def partition_checksums(records: DataFrame) -> DataFrame:
    """For each partition: how many records, their first and last offset, the distinct offsets, a checksum of all.

    The checksum is the sum of a hash of every column of every record: equal records in any order give equal sums.
    """
    return records.groupBy(*_PARTITION).agg(
        F.count("*").alias("records"),
        F.countDistinct("offset").alias("distinct_offsets"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.sum(F.xxhash64(*_CONTENT).cast("decimal(38,0)")).alias("checksum"),
    )


def differing_partitions(one: DataFrame, other: DataFrame) -> DataFrame:
    """The partitions that two sets of checksums do not agree on, those that only one of them has included.

    Both are answers of `partition_checksums`.
    """
    compared = ("records", "first_offset", "last_offset", "checksum")
    left = one.select(*_PARTITION, *(F.col(name).alias(f"one_{name}") for name in compared))
    right = other.select(*_PARTITION, *(F.col(name).alias(f"other_{name}") for name in compared))
    agree = " AND ".join(f"one_{name} <=> other_{name}" for name in compared)
    return left.join(right, on=list(_PARTITION), how="full").where(f"NOT ({agree})")
