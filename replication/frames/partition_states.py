"""The views `partitions` and `replicas`. Kafka: `Partition`."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakelog.replication.frames.columns import PARTITION, described, missing_records, or_null
from lakelog.schemas.views.state_views import PARTITIONS, REPLICA_STATES

_LEADS = "leader >= 0"
_COUNT = "size(replicas) - size(adding_replicas)"
_DELETING = "coalesce(deleting, leader < -1)"

# As `jobs.admin.cluster_status` and `lakelog topics` judge.
_JUDGED = {
    "replicas_count": _COUNT,
    "in_sync_replicas_count": "size(isr)",
    "under_replicated": f"{_LEADS} AND size(array_except(array_except(replicas, adding_replicas), isr)) > 0",
    "under_min_isr": f"{_LEADS} AND size(isr) < min_insync_replicas",
    "at_min_isr": f"{_LEADS} AND size(isr) = min_insync_replicas",
    "is_offline": f"NOT {_LEADS} AND NOT {_DELETING}",
    "is_deleting": _DELETING,
    "is_reassigning": "size(adding_replicas) + size(removing_replicas) > 0",
    "is_preferred_leader": "leader = get(replicas, 0)",
}

# There are no transactions, so the last stable offset is the HW. The committed records that no other replica has begin
# where the furthest of the others ends.
_OFFSETS = {
    "log_start_offset": "leader_log_start_offset",
    "log_end_offset": "leader_log_end_offset",
    "high_watermark": "leader_high_watermark",
    "last_stable_offset": "leader_high_watermark",
    "last_stable_offset_lag": "leader_high_watermark - leader_high_watermark",
    "one_replica_from": "if(leader_high_watermark IS NULL, NULL, "
    "greatest(leader_log_start_offset, least(leader_high_watermark, coalesce(others_end, leader_log_start_offset))))",
}

_LEADER_ROW = ("log_start_offset", "log_end_offset", "high_watermark", "epochs", "chain")

# A replica has the leader's records up to the leader's first epoch above all of its own, at most. A row that says
# Truncating or Offline counts for nothing. [HW-02, TR-03]
_MATCHING_END = """
if(state IN ('Fetching', 'Delayed') AND leader_log_end_offset IS NOT NULL,
   least(log_end_offset, leader_log_end_offset, array_min(transform(
       filter(leader_epochs, e -> e.leader_epoch > coalesce(try_element_at(epochs, -1).leader_epoch, -1)),
       e -> e.start_offset))),
   NULL)
"""


def partitions_view(metadata: DataFrame, topics: DataFrame, replicas: DataFrame, min_insync_replicas: int) -> DataFrame:
    """A row a partition; columns of `PARTITIONS`. The arguments are rows of these tables; `min_insync_replicas` is that
    of topics which do not set it. [IS-03, HW-02]"""
    others = F.max(F.when(F.expr("broker_id <> leader"), F.col("matching_end_offset")))
    found = _assigned_replicas(metadata, replicas).groupBy(*PARTITION).agg(
        F.any_value("registration").alias("registration"), F.any_value("leader_row").alias("leader_row"),
        others.alias("others_end"),
    )  # fmt: skip
    whole = found.select("registration.*", *_leader_columns(), "others_end")
    found = whole.join(F.broadcast(_settings(topics, min_insync_replicas)), on="topic_id", how="left")
    least = F.when(F.col("configured").isNotNull(), F.least(F.col("configured"), F.expr(_COUNT)))
    judged = found.withColumn("min_insync_replicas", least)
    judged = judged.withColumns({name: F.expr(rule) for name, rule in {**_JUDGED, **_OFFSETS}.items()})
    judged = judged.withColumn("one_replica_records", F.expr("high_watermark - one_replica_from"))
    return described(judged.withColumn("leader", or_null(F.col("leader"))), PARTITIONS)


def _settings(topics: DataFrame, min_insync_replicas: int) -> DataFrame:
    own = F.expr("try_cast(try_element_at(configs, 'min.insync.replicas') AS int)")
    return topics.select("topic_id", "deleting", F.coalesce(own, F.lit(min_insync_replicas)).alias("configured"))


def replicas_view(metadata: DataFrame, replicas: DataFrame, brokers: DataFrame) -> DataFrame:
    """A row an assigned replica; columns of `REPLICA_STATES`. `metadata` and `replicas` are rows of these tables;
    `brokers` has broker_id, state, storage_error and root_error, as the view `brokers` has them."""
    of_broker = brokers.select("broker_id", F.col("state").alias("broker_state"), "storage_error", "root_error")
    found = _assigned_replicas(metadata, replicas).join(F.broadcast(of_broker), on="broker_id", how="left")
    is_at_end = F.col("log_end_offset") == F.col("leader_log_end_offset")
    compared = {
        "is_leader": F.expr("broker_id = leader"),
        "in_sync": F.expr("array_contains(isr, broker_id)"),
        "is_offline": F.expr("coalesce(broker_state NOT IN ('alive', 'stopping'), false) OR state <=> 'Offline'"),
        "is_current": F.expr("leader_epoch = current_epoch"),
        "lag": missing_records(F.col("leader_high_watermark"), F.col("log_end_offset")),
        "log_end_offset_lag": missing_records(F.col("leader_log_end_offset"), F.col("log_end_offset")),
        "has_leaders_records": F.when(is_at_end, F.col("chain") == F.col("leader_chain")),
        "error": F.coalesce("error", "storage_error", "root_error"),
    }
    return described(found.withColumns(compared), REPLICA_STATES)


def _assigned_replicas(metadata: DataFrame, replicas: DataFrame) -> DataFrame:
    """A row an assigned replica: the partition's registration, its own row and the leader's, and the end of what it has
    of the leader's records. Each table is read once. [HW-02]"""
    assigned = metadata.select(
        *PARTITION, "topic", "leader", F.col("leader_epoch").alias("current_epoch"), "isr",
        F.struct(*metadata.columns).alias("registration"), F.explode("replicas").alias("broker_id"),
    )  # fmt: skip
    names = ("role", "state", "leader_epoch", *_LEADER_ROW, "error")
    rows = replicas.select(*PARTITION, "broker_id", *names, F.col("committed_at").alias("published_at"))
    found = assigned.join(rows, on=[*PARTITION, "broker_id"], how="left")
    leads = F.expr("broker_id = leader AND role = 'leader' AND leader_epoch = current_epoch")
    leader_row = F.any_value(F.when(leads, F.struct(*_LEADER_ROW)), ignoreNulls=True)
    with_leader = found.withColumn("leader_row", leader_row.over(Window.partitionBy(*PARTITION)))
    whole = with_leader.select("*", *_leader_columns())
    return whole.withColumn("matching_end_offset", F.expr(_MATCHING_END))


def _leader_columns() -> list[Column]:
    return [F.col(f"leader_row.{name}").alias(f"leader_{name}") for name in _LEADER_ROW]
