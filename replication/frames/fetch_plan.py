"""The action of a follower for each batch header of its stream: the DataFrame rule of a micro-batch.

It compares chains as `protocol.append_plan.plan_appends` does in a round, without its limits, and checks assignment and
fetch state. It is advice: a round decides again before anything is copied. Kafka:
`ReplicaFetcherThread.processPartitionData`, `AbstractFetcherThread.doWork`. [FT-02, FT-10]
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakelog.replication.frames.expressions import PARTITION

_ORDER = ("base_offset", "last_offset", "chain", "segment")


class FetchAction:
    """The values of the column `action`.

    `APPEND`: the batch continues the follower's log. `SKIP`: the log has it already. `GAP`: it begins above the log
    end, or follows such a batch. `DIVERGED`: it is at the log end and does not continue its chain, or follows such a
    batch. `TRUNCATE_FIRST`: the partition has to be truncated before it is fetched. `DELAYED`: the partition waits
    after an error, or for its quota. `FENCED`: the fetcher fetches under another leader epoch than metadata say.
    `UNASSIGNED`: metadata give the partition to no replica here that follows this leader, or it is no longer fetched.
    """

    APPEND = "append"
    SKIP = "skip"
    GAP = "gap"
    DIVERGED = "diverged"
    TRUNCATE_FIRST = "truncate first"
    DELAYED = "delayed"
    FENCED = "fenced"
    UNASSIGNED = "unassigned"


def fetch_plan(
    headers: DataFrame, metadata: DataFrame, fetch_states: DataFrame, broker_id: int, leader: int
) -> DataFrame:  # fmt: skip
    """The headers with one more column, `action`: see `FetchAction`.

    `headers`: columns of `BATCH_HEADERS`. `metadata`: rows of that table, with its assignments. `fetch_states`: columns
    of `FETCH_STATES`, those of the fetcher of broker `broker_id` that fetches from broker `leader`.
    """
    is_assigned = (F.col("leader") == leader) & F.array_contains("replicas", broker_id)
    assigned = metadata.where(is_assigned).select(*PARTITION, F.col("leader_epoch").alias("assigned_epoch"))
    states = fetch_states.select(
        *PARTITION, "state", F.col("leader_epoch").alias("fetch_epoch"),
        F.struct(F.col("log_end_offset").alias("offset"), F.lit(0).alias("place"), "chain").alias("log_end"),
    )  # fmt: skip
    joined = headers.join(F.broadcast(assigned), on=list(PARTITION), how="left")
    joined = joined.join(F.broadcast(states), on=list(PARTITION), how="left")

    in_order = Window.partitionBy(*PARTITION).orderBy(*_ORDER)
    before, so_far = (
        in_order.rowsBetween(Window.unboundedPreceding, -1),
        in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow),
    )
    # Until a batch stops its partition, the log ends at the highest end of the batches before. Of several with that end
    # the first one counts: the others were skipped.
    placed = joined.withColumn("place", -F.row_number().over(in_order))
    after = F.struct((F.col("last_offset") + 1).alias("offset"), "place", "chain")
    placed = placed.withColumn("end", F.greatest("log_end", F.max(after).over(before)))
    own = (
        F.when(F.expr("last_offset < end.offset"), FetchAction.SKIP)
        .when(F.expr("base_offset > end.offset"), FetchAction.GAP)
        .when(F.expr("previous <> end.chain"), FetchAction.DIVERGED)
        .otherwise(FetchAction.APPEND)
    )
    stops = F.when(F.col("own").isin(FetchAction.GAP, FetchAction.DIVERGED), F.col("own"))
    stopped = placed.withColumn("own", own).withColumn("stop", F.first(stops, ignorenulls=True).over(so_far))
    action = (
        F.when(F.expr("assigned_epoch IS NULL OR fetch_epoch IS NULL"), FetchAction.UNASSIGNED)
        .when(F.expr("assigned_epoch <> fetch_epoch"), FetchAction.FENCED)
        .when(F.col("state") == "Truncating", FetchAction.TRUNCATE_FIRST)
        .when(F.col("state") != "Fetching", FetchAction.DELAYED)
        .otherwise(F.coalesce("stop", "own"))
    )
    return stopped.withColumn("action", action).select(*headers.columns, "action")
