"""The state of a cluster as DataFrames: the views that `register_views` makes, except for metrics."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakelog.replication.frames.expressions import (
    PARTITION,
    count_where,
    described,
    leader_or_null,
    leader_rows,
    milliseconds_between,
    missing_records,
)
from lakelog.schemas.views.cluster_views import (
    BROKER_STATES,
    CONSUMER_GROUPS,
    CONTROLLER_STATE,
    ISR_HISTORY,
    LAG,
    LEADER_EPOCHS,
    LOG_FILES,
    PARTITIONS,
    REPLICA_STATES,
    TOPIC_STATES,
)

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

# A replica has the leader's records up to the first offset to which their lineages give different epochs: the rule of
# `protocol.truncation.truncation_offset`. A row that says Truncating or Offline counts for nothing. [HW-02, TR-03]
_MATCHING_END = """
if(state IN ('Fetching', 'Delayed') AND leader_log_end_offset IS NOT NULL,
   least(log_end_offset, leader_log_end_offset, array_min(filter(
       array_union(epochs.start_offset, leader_epochs.start_offset),
       at -> at >= get(epochs, 0).start_offset AND at >= get(leader_epochs, 0).start_offset
           AND NOT array_max(filter(epochs, e -> e.start_offset <= at).leader_epoch)
               <=> array_max(filter(leader_epochs, e -> e.start_offset <= at).leader_epoch)))),
   NULL)
"""

_LED = {
    "leader_count": "true",
    "under_replicated_partitions": "under_replicated",
    "under_min_isr_partition_count": "under_min_isr",
    "at_min_isr_partition_count": "at_min_isr",
    "reassigning_partitions": "is_reassigning",
}
_IDLE = "Idle"
_READER = ("reader", *PARTITION)


def partitions_view(metadata: DataFrame, topics: DataFrame, replicas: DataFrame, min_insync_replicas: int) -> DataFrame:
    """One row for each partition; columns of `PARTITIONS`. The arguments are rows of these tables;
    `min_insync_replicas` is that of topics which do not set it. [IS-03, HW-02]"""
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
    return described(judged.withColumn("leader", leader_or_null(F.col("leader"))), PARTITIONS)


def _settings(topics: DataFrame, min_insync_replicas: int) -> DataFrame:
    own = F.expr("try_cast(try_element_at(configs, 'min.insync.replicas') AS int)")
    return topics.select("topic_id", "deleting", F.coalesce(own, F.lit(min_insync_replicas)).alias("configured"))


def replicas_view(metadata: DataFrame, replicas: DataFrame, brokers: DataFrame) -> DataFrame:
    """One row for each assigned replica; columns of `REPLICA_STATES`. `metadata` and `replicas` are rows of these
    tables; `brokers` has broker_id, state, storage_error and root_error, as the view `brokers` has them."""
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
    """One row for each assigned replica: the partition's registration, its own row and the leader's, and the end of
    what it has of the leader's records. Each table is read once. [HW-02]"""
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
    """One row for each broker; columns of `BROKER_STATES`. `brokers` is a result of `broker_registrations`;
    `partitions` and `replicas` are those views."""
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
    """One row for each topic; columns of `TOPIC_STATES`. `topics` and `replicas` are rows of these tables, `partitions`
    is that view, `brokers` a result of `broker_registrations`. [TD-01, TD-03, BD-02]"""
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
    columns = {
        "partitions": F.col("number"),
        "min_insync_replicas": F.coalesce(own, F.lit(min_insync_replicas)),
        "is_deleting": F.col("deleting"),
        "is_ineligible_to_delete": F.expr("deleting AND (waiting > 0 OR coalesce(reassigning, false))"),
        "replicas_to_delete": F.expr("if(deleting, to_delete, 0)"),
        "replicas_ineligible_to_delete": F.expr("if(deleting, waiting, 0)"),
    }
    return described(filled.withColumns(columns), TOPIC_STATES)


def _not_deleted(partitions: DataFrame, replicas: DataFrame, brokers: DataFrame) -> DataFrame:
    """The replicas of deleted topics that their brokers still publish, or whose brokers cannot be read, by topic id."""
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


def consumer_groups_view(groups: DataFrame, metadata: DataFrame, replicas: DataFrame) -> DataFrame:
    """One row for each group and partition; columns of `CONSUMER_GROUPS`. The arguments are rows of these tables.
    [AP-04]"""
    found = groups.join(F.broadcast(leader_rows(metadata, replicas)), on=list(PARTITION), how="left")
    high_watermark = F.col("leader_high_watermark")
    columns = {
        "log_start_offset": F.col("leader_log_start_offset"),
        "high_watermark": high_watermark,
        "lag": missing_records(high_watermark, F.greatest("committed_offset", "leader_log_start_offset")),
    }
    return described(found.withColumns(columns), CONSUMER_GROUPS)


def lag_view(metadata: DataFrame, replicas: DataFrame, groups: DataFrame, batches: DataFrame) -> DataFrame:
    """One row for each follower and partition, and one for each group and partition; columns of `LAG`. The first three
    arguments are rows of these tables, `batches` those of `BATCHES`. [FT-08, AP-04]"""
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
    columns = {
        "lag_ms": F.coalesce(none, "missing_ms"),
        "lag_bytes": F.coalesce(none, "missing_bytes"),
        "leader": leader_or_null(F.col("leader")),
    }
    return described(sized.withColumns(columns), LAG)


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
    """One row for each file of a log and partition in it; columns of `LOG_FILES`. `batches` are rows of `BATCHES`."""
    found = batches.groupBy("broker_id", "file", *PARTITION).agg(
        F.max("file_bytes").alias("file_bytes"),
        F.max("topic").alias("topic"),
        F.min("base_offset").alias("base_offset"),
        F.max("last_offset").alias("last_offset"),
        F.coalesce(F.sum("records"), F.lit(0)).alias("records"),
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


def isr_history_view(changes: DataFrame) -> DataFrame:
    """One row for each change of a partition; columns of `ISR_HISTORY`. `changes` are rows of `METADATA_CHANGES`.
    [IS-05]"""
    in_order = Window.partitionBy(*PARTITION).orderBy("version", "is_removed")
    before = F.lag("isr").over(in_order)
    known = F.when(~F.col("is_first"), F.coalesce(before, F.array().cast("array<int>")))
    joined = changes.withColumns(
        {"since": F.col("committed_at"), "until": F.lead("committed_at").over(in_order), "before": known}
    ).where("NOT is_removed")
    members = joined.withColumns(
        {"left_isr": F.array_except("before", "isr"), "joined_isr": F.array_except("isr", "before")}
    )
    moves = {
        "is_shrink": F.expr("coalesce(size(left_isr) > 0, false)"),
        "is_expand": F.expr("coalesce(size(joined_isr) > 0 AND partition_epoch > 0, false)"),
        "leader": leader_or_null(F.col("leader")),
    }
    return described(members.withColumns(moves), ISR_HISTORY)


def leader_epochs_view(changes: DataFrame, replicas: DataFrame) -> DataFrame:
    """One row for each leader epoch of a partition; columns of `LEADER_EPOCHS`. `changes` are rows of
    `METADATA_CHANGES`, `replicas` those of the table. The offsets are those of the present leader's log.
    [EP-01, EP-03]"""
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
    columns = {"leader": leader_or_null(F.col("elected")), "elected_at": F.when(~F.col("is_first"), F.col("since"))}
    return described(found.withColumns(columns), LEADER_EPOCHS)


def _lineage(leaders: DataFrame) -> DataFrame:
    """One row for each epoch of the leaders' logs: it ends where the next one begins, the last one at the LEO."""
    epochs = leaders.select(*PARTITION, "leader_log_end_offset", F.explode("leader_epochs").alias("entry"))
    entry = epochs.select(*PARTITION, "leader_log_end_offset", "entry.*")
    following = F.lead("start_offset").over(Window.partitionBy(*PARTITION).orderBy("leader_epoch"))
    return entry.withColumn("end_offset", F.coalesce(following, F.col("leader_log_end_offset")))
