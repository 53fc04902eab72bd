"""The views `brokers`, `topics` and `controller`. Kafka: `ReplicaManager`, `KafkaController`."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakelog.replication.frames.columns import PARTITION, count_where, described, milliseconds_between
from lakelog.schemas.views.state_views import BROKER_STATES, CONTROLLER_STATE, TOPIC_STATES

_LED = {
    "leader_count": "true",
    "under_replicated_partitions": "under_replicated",
    "under_min_isr_partition_count": "under_min_isr",
    "at_min_isr_partition_count": "at_min_isr",
    "reassigning_partitions": "is_reassigning",
}
_IDLE = "Idle"


def is_live(timeout_ms: int) -> Column:
    """Whether the newest commit of an owner's table is younger than its session time-out. One from the future is no
    proof: the clocks differ. [BC-01]"""
    return F.abs(milliseconds_between(F.col("committed_at"), F.col("observed_at"))) < timeout_ms


def broker_registrations(brokers: DataFrame, session_timeout_ms: int) -> DataFrame:
    """Rows of the table `brokers`, with the column state: alive, dead, stopping, stopped or storage error, as `lakelog
    status` says."""
    live, stops = is_live(session_timeout_ms), F.col("shutting_down")
    state = (
        F.when(~live & stops, "stopped").when(~live, "dead").when(F.col("storage_error").isNotNull(), "storage error")
        .when(stops, "stopping").otherwise("alive")
    )  # fmt: skip
    return brokers.withColumn("state", state)


def brokers_view(brokers: DataFrame, partitions: DataFrame, replicas: DataFrame) -> DataFrame:
    """A row a broker; columns of `BROKER_STATES`. `brokers` is a result of `broker_registrations`; `partitions` and
    `replicas` are those views."""
    led = partitions.groupBy(F.col("leader").alias("broker_id")).agg(
        *(count_where(F.expr(rule)).alias(name) for name, rule in _LED.items())
    )
    is_known = F.col("role").isNotNull()
    followed = F.when(~F.col("is_leader"), F.col("lag"))
    held = replicas.groupBy("broker_id").agg(
        F.count("*").alias("partition_count"),
        count_where(F.col("state") == "Offline").alias("offline_replica_count"),
        F.max(followed).alias("max_lag"),
        F.sum(followed).alias("total_lag"),
        F.when(F.max(is_known), count_where(is_known & F.col("error").isNotNull())).alias("failed_partitions_count"),
    )
    counts = [*_LED, "partition_count", "offline_replica_count"]
    found = brokers.join(F.broadcast(led), "broker_id", "left").join(F.broadcast(held), "broker_id", "left")
    age = milliseconds_between(F.col("committed_at"), F.col("observed_at"))
    times = {"last_heartbeat": F.col("committed_at"), "heartbeat_age_ms": F.greatest(F.lit(0), age)}
    return described(found.fillna(0, counts).withColumns(times), BROKER_STATES)


def topics_view(
    topics: DataFrame, partitions: DataFrame, replicas: DataFrame, brokers: DataFrame, min_insync_replicas: int
) -> DataFrame:
    """A row a topic; columns of `TOPIC_STATES`. `topics` and `replicas` are rows of these tables, `partitions` is that
    view, `brokers` a result of `broker_registrations`. [TD-01, TD-03, BD-02]"""
    of_partitions = partitions.groupBy("topic_id").agg(
        F.count("*").alias("number"),
        F.min_by("replicas_count", "partition").alias("replication_factor"),
        count_where(F.col("is_offline")).alias("offline_partitions"),
        count_where(F.col("under_replicated")).alias("under_replicated_partitions"),
        F.max("is_reassigning").alias("reassigning"),
    )
    found = topics.drop("partitions").join(F.broadcast(of_partitions), on="topic_id", how="left")
    found = found.join(F.broadcast(_not_deleted(partitions, replicas, brokers)), on="topic_id", how="left")
    own = F.expr("try_cast(try_element_at(configs, 'min.insync.replicas') AS int)")
    counts = [
        "number",
        "offline_partitions",
        "under_replicated_partitions",
        "replication_factor",
        "to_delete",
        "waiting",
    ]
    filled = found.fillna(0, counts)
    told = {
        "partitions": F.col("number"),
        "min_insync_replicas": F.coalesce(own, F.lit(min_insync_replicas)),
        "is_deleting": F.col("deleting"),
        "is_ineligible_to_delete": F.expr("deleting AND (waiting > 0 OR coalesce(reassigning, false))"),
        "replicas_to_delete": F.expr("if(deleting, to_delete, 0)"),
        "replicas_ineligible_to_delete": F.expr("if(deleting, waiting, 0)"),
    }
    return described(filled.withColumns(told), TOPIC_STATES)


def _not_deleted(partitions: DataFrame, replicas: DataFrame, brokers: DataFrame) -> DataFrame:
    """The replicas of deleted topics that their brokers still tell of, or that nobody can tell of, by topic id."""
    assigned = partitions.where("is_deleting").select(*PARTITION, F.explode("replicas").alias("broker_id"))
    rows = replicas.select(*PARTITION, "broker_id", F.lit(True).alias("is_there"))
    of_broker = brokers.select("broker_id", F.col("state").isin("alive", "stopping").alias("is_alive"), "root_error")
    found = assigned.join(rows, [*PARTITION, "broker_id"], "left").join(F.broadcast(of_broker), "broker_id", "left")
    left = found.where("is_there OR root_error IS NOT NULL OR is_alive IS NULL")
    return left.groupBy("topic_id").agg(
        F.count("*").alias("to_delete"), count_where(~F.coalesce("is_alive", F.lit(False))).alias("waiting")
    )


def controller_view(
    controller: DataFrame, admin: DataFrame, topics: DataFrame, partitions: DataFrame, brokers: DataFrame,
    session_timeout_ms: int,
) -> DataFrame:  # fmt: skip
    """One row; columns of `CONTROLLER_STATE`. `controller` and `admin` are rows of these tables, `brokers` is a result
    of `broker_registrations`, the others are views. [CE-01, TM-01]"""
    lease = controller.agg(
        F.max("controller_id").alias("controller_id"),
        F.max("controller_epoch").alias("controller_epoch"),
        F.max("committed_at").alias("last_renewal"),
        count_where(is_live(session_timeout_ms) & ~F.col("resigned")).alias("active_controller_count"),
    )
    busy = F.col("state").isin("Deciding", "Applying")
    works = admin.agg(F.coalesce(F.min(F.when(busy, F.col("kind"))), F.lit(_IDLE)).alias("controller_state"))
    alive = count_where(F.col("state").isin("alive", "stopping"))
    totals = (
        lease, works,
        brokers.agg(alive.alias("active_broker_count"), (F.count("*") - alive).alias("fenced_broker_count")),
        _topic_totals(topics), _partition_totals(partitions),
    )  # fmt: skip
    found = totals[0]
    for total in totals[1:]:
        found = found.crossJoin(total)
    return described(found, CONTROLLER_STATE)


def _topic_totals(topics: DataFrame) -> DataFrame:
    def total(name: str) -> Column:
        return F.coalesce(F.sum(name), F.lit(0))

    return topics.agg(
        F.count("*").alias("global_topic_count"),
        count_where(F.col("is_deleting")).alias("topics_to_delete_count"),
        count_where(F.col("is_ineligible_to_delete")).alias("topics_ineligible_to_delete_count"),
        total("replicas_to_delete").alias("replicas_to_delete_count"),
        total("replicas_ineligible_to_delete").alias("replicas_ineligible_to_delete_count"),
    )


def _partition_totals(partitions: DataFrame) -> DataFrame:
    imbalanced = ~F.col("is_preferred_leader") & ~F.col("is_deleting")
    return partitions.agg(
        F.count("*").alias("global_partition_count"),
        count_where(F.col("is_offline")).alias("offline_partitions_count"),
        count_where(imbalanced).alias("preferred_replica_imbalance_count"),
    )
