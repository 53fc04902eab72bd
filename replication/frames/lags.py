"""The views `lag`, `consumer_groups` and `log_files`. Kafka: `FetcherLagMetrics`, `kafka-consumer-groups.sh`,
`DumpLogSegments`."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakelog.replication.frames.columns import (
    PARTITION,
    described,
    leader_rows,
    milliseconds_between,
    missing_records,
    or_null,
)
from lakelog.schemas.views.offset_views import CONSUMER_GROUPS, LAG, LOG_FILES

_READER = ("reader", *PARTITION)


def consumer_groups_view(groups: DataFrame, metadata: DataFrame, replicas: DataFrame) -> DataFrame:
    """A row a group and partition; columns of `CONSUMER_GROUPS`. The arguments are rows of these tables. [AP-04]"""
    found = groups.join(F.broadcast(leader_rows(metadata, replicas)), on=list(PARTITION), how="left")
    high_watermark = F.col("leader_high_watermark")
    told = {
        "log_start_offset": F.col("leader_log_start_offset"),
        "high_watermark": high_watermark,
        "lag": missing_records(high_watermark, F.greatest("committed_offset", "leader_log_start_offset")),
    }
    return described(found.withColumns(told), CONSUMER_GROUPS)


def lag_view(metadata: DataFrame, replicas: DataFrame, groups: DataFrame, batches: DataFrame) -> DataFrame:
    """A row a follower and partition, and a row a group and partition; columns of `LAG`. The first three arguments are
    rows of these tables, `batches` those of `BATCHES`. [FT-08, AP-04]"""
    readers = _followers(metadata, replicas).unionByName(_groups(metadata, groups))
    found = readers.join(F.broadcast(leader_rows(metadata, replicas)), on=list(PARTITION), how="left")
    kept = F.greatest("fetch_offset", "leader_log_start_offset")  # older records were deleted
    start = F.when(F.col("fetch_offset").isNotNull(), kept)
    lag = missing_records(F.col("leader_high_watermark"), start)
    reader = F.concat_ws(" ", "kind", "broker_id", "group_id")
    high_watermark = F.col("leader_high_watermark")
    found = found.withColumns({"reader": reader, "high_watermark": high_watermark, "lag": lag, "from": start})
    sized = found.join(_missing(found.where("lag > 0"), batches), on=list(_READER), how="left")
    none = F.when(F.col("lag") == 0, F.lit(0))
    told = {
        "lag_ms": F.coalesce(none, "missing_ms"),
        "lag_bytes": F.coalesce(none, "missing_bytes"),
        "leader": or_null(F.col("leader")),
    }
    return described(sized.withColumns(told), LAG)


def _missing(behind: DataFrame, batches: DataFrame) -> DataFrame:
    """The bytes of the batches, in the leader's log, that a reader lacks, and the age of the first of them. A batch of
    which it lacks a part counts in proportion."""
    offsets = behind.select(*_READER, F.col("leader").alias("broker_id"), "from", "high_watermark")
    found = batches.join(F.broadcast(offsets), on=[*PARTITION, "broker_id"], how="inner").where(
        "base_offset < high_watermark AND last_offset >= `from`"
    )
    lacked = F.expr("least(last_offset + 1, high_watermark) - greatest(base_offset, `from`)")
    share = F.col("bytes") * lacked / F.expr("last_offset + 1 - base_offset")
    first = F.min_by("max_timestamp", "base_offset")
    age = milliseconds_between(first, F.max("observed_at"))
    return found.groupBy(*_READER).agg(
        F.sum(share).alias("missing_bytes"), F.greatest(F.lit(0), age).alias("missing_ms")
    )


def log_files_view(batches: DataFrame) -> DataFrame:
    """A row a file of a log and partition in it; columns of `LOG_FILES`. `batches` are rows of `BATCHES`."""
    count = F.col("last_offset") + 1 - F.col("base_offset")
    found = batches.groupBy("broker_id", "file", *PARTITION).agg(
        F.max("file_bytes").alias("file_bytes"),
        F.max("topic").alias("topic"),
        F.min("base_offset").alias("base_offset"),
        F.max("last_offset").alias("last_offset"),
        F.coalesce(F.sum(count), F.lit(0)).alias("records"),
        F.count("base_offset").alias("batches"),
        F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
        F.max("max_timestamp").alias("max_timestamp"),
        F.sort_array(F.collect_set("leader_epoch")).alias("leader_epochs"),
        F.sort_array(F.collect_set(F.when(F.col("producer_id") >= 0, F.col("producer_id")))).alias("producer_ids"),
        F.max("error").alias("error"),
    )
    return described(found, LOG_FILES)


def _followers(metadata: DataFrame, replicas: DataFrame) -> DataFrame:
    assigned = metadata.select("topic", *PARTITION, "leader", F.explode("replicas").alias("broker_id"))
    rows = replicas.select(*PARTITION, "broker_id", F.col("log_end_offset").alias("fetch_offset"))
    found = assigned.where("broker_id <> leader").join(rows, on=[*PARTITION, "broker_id"], how="left")
    return found.withColumns({"kind": F.lit("follower"), "group_id": F.lit(None).cast("string")})


def _groups(metadata: DataFrame, groups: DataFrame) -> DataFrame:
    rows = groups.select("topic", *PARTITION, "group_id", F.col("committed_offset").alias("fetch_offset"))
    found = rows.join(metadata.select(*PARTITION, "leader"), on=list(PARTITION), how="left")
    return found.withColumns({"kind": F.lit("group"), "broker_id": F.lit(None).cast("int")})
