"""What a follower makes of the headers that its fetcher has streamed. [FT-04, FT-07, FT-10]"""

from __future__ import annotations

from pyspark.sql import DataFrame

APPEND, SKIP, FENCED, GAP = "append", "skip", "fenced", "gap"

_IS_OURS = "gap IS NOT NULL OR fetch_offset IS NOT NULL"

# The leader's lineage gives the batch's epoch to all its offsets that are wanted; those below may have been deleted.
# An old checkpoint may deliver a batch that has since been cut from the leader's log: its epoch, or its place, is not
# in the lineage any more.
_IS_IN_LINEAGE = """exists(epochs, e -> e.leader_epoch = leader_epoch
    and e.start_offset <= greatest(base_offset, fetch_offset) and last_offset < e.end_offset)"""

_ACTION = f"""CASE WHEN gap IS NOT NULL THEN '{GAP}'
    WHEN last_offset < fetch_offset THEN '{SKIP}'
    WHEN NOT {_IS_IN_LINEAGE} THEN '{FENCED}'
    ELSE '{APPEND}' END AS action"""


def fetch_plan(headers: DataFrame, fetch_states: DataFrame) -> DataFrame:
    """What becomes of each batch: `skip` if the follower has it, `fenced` if the leader's lineage does not hold it,
    else `append`; a gap in the stream stays a `gap`. Batches of partitions that are not fetched from this leader now
    are left out.

    `headers` are `schemas.RECORD_BATCHES`; `fetch_states` are `schemas.FETCH_STATES`, a row a partition. Which batches
    follow the log end, one after the other, is `protocol.append_plan`'s to say.

    One partition, one join and one projection: this runs in every micro-batch, so its fixed cost is its cost.
    """
    return (
        headers.coalesce(1)
        .join(fetch_states.coalesce(1), on=["topic_id", "partition"], how="left")
        .where(_IS_OURS)
        .selectExpr(
            "topic_id", "partition", "base_offset", "last_offset", "leader_epoch", "segment", "segment_bytes", "bytes",
            "previous", "chain", _ACTION, "gap",
        )
    )  # fmt: skip
