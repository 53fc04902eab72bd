"""Plans a follower's fetch from the headers that its fetcher has streamed. [FT-04]"""

from __future__ import annotations

from pyspark.sql import DataFrame

_IS_FETCHED = "gap IS NOT NULL OR last_offset >= fetch_offset"


def fetch_plan(headers: DataFrame, fetch_states: DataFrame) -> DataFrame:
    """The batches that reach the fetch offset of their partition, and the gaps of the stream. It leaves out partitions
    that the broker does not fetch from this leader now.

    `headers` has the columns of `schemas.RECORD_BATCHES`, `fetch_states` those of `schemas.FETCH_STATES` with one row a
    partition. The result has the columns selected below; `protocol.rounds.fetch_round` decides on each batch.

    It uses one Spark partition, one join and one projection, because it runs in every micro-batch and its fixed cost
    dominates.
    """
    return (
        headers.coalesce(1)
        .join(fetch_states.coalesce(1), on=["topic_id", "partition"], how="left")
        .where(_IS_FETCHED)
        .select(
            "topic_id", "partition", "base_offset", "last_offset", "leader_epoch", "segment", "segment_bytes", "bytes",
            "previous", "chain", "gap",
        )
    )  # fmt: skip
