"""The views `isr_history` and `leader_epochs`. Kafka: `LeaderEpochFileCache`, and the log of `__cluster_metadata`."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakelog.replication.frames.columns import PARTITION, described, leader_rows, or_null
from lakelog.schemas.views.offset_views import ISR_HISTORY, LEADER_EPOCHS


def isr_history_view(changes: DataFrame) -> DataFrame:
    """A row a change of a partition; columns of `ISR_HISTORY`. `changes` are rows of `METADATA_CHANGES`. [IS-05]"""
    in_order = Window.partitionBy(*PARTITION).orderBy("version", "is_removed")
    before = F.lag("isr").over(in_order)
    known = F.when(~F.col("is_first"), F.coalesce(before, F.array().cast("array<int>")))
    told = changes.withColumns(
        {"since": F.col("committed_at"), "until": F.lead("committed_at").over(in_order), "before": known}
    ).where("NOT is_removed")
    members = told.withColumns(
        {"left_isr": F.array_except("before", "isr"), "joined_isr": F.array_except("isr", "before")}
    )
    moves = {
        "is_shrink": F.expr("coalesce(size(left_isr) > 0, false)"),
        "is_expand": F.expr("coalesce(size(joined_isr) > 0 AND partition_epoch > 0, false)"),
        "leader": or_null(F.col("leader")),
    }
    return described(members.withColumns(moves), ISR_HISTORY)


def leader_epochs_view(changes: DataFrame, replicas: DataFrame) -> DataFrame:
    """A row a leader epoch of a partition; columns of `LEADER_EPOCHS`. `changes` are rows of `METADATA_CHANGES`,
    `replicas` those of the table. The offsets are those of the present leader's log. [EP-01, EP-03]"""
    key = [*PARTITION, "leader_epoch"]
    kept = changes.where("NOT is_removed")
    newest = kept.groupBy(*PARTITION).agg(
        F.max("topic").alias("topic"), F.max_by("leader", "version").alias("leader"),
        F.max_by("leader_epoch", "version").alias("leader_epoch"),
    )  # fmt: skip
    elected = kept.groupBy(*key).agg(
        F.min_by("leader", "version").alias("elected"), F.min("committed_at").alias("since"),
        F.min_by("is_first", "version").alias("is_first"),
    )  # fmt: skip
    lineage = _lineage(leader_rows(newest, replicas))
    found = lineage.join(elected, on=key, how="full").join(newest.select(*PARTITION, "topic"), list(PARTITION), "inner")
    told = {"leader": or_null(F.col("elected")), "elected_at": F.when(~F.col("is_first"), F.col("since"))}
    return described(found.withColumns(told), LEADER_EPOCHS)


def _lineage(leaders: DataFrame) -> DataFrame:
    """A row an epoch of the leaders' logs: it ends where the next one begins, the last one at the LEO."""
    epochs = leaders.select(*PARTITION, "leader_log_end_offset", F.explode("leader_epochs").alias("entry"))
    entry = epochs.select(*PARTITION, "leader_log_end_offset", "entry.*")
    following = F.lead("start_offset").over(Window.partitionBy(*PARTITION).orderBy("leader_epoch"))
    return entry.withColumn("end_offset", F.coalesce(following, F.col("leader_log_end_offset")))
