"""A follower's fetch, of the headers that its fetcher has streamed. [FT-04]"""

from __future__ import annotations

from pyspark.sql import DataFrame

_IS_FETCHED = "gap IS NOT NULL OR last_offset >= fetch_offset"


def fetch_plan(headers: DataFrame, fetch_states: DataFrame) -> DataFrame:
    """The batches that reach to the fetch offset of their partition or above it, and the gaps of the stream. Batches of
    partitions that are not fetched from this leader now are left out.

    `headers` are `schemas.RECORD_BATCHES`; `fetch_states` are `schemas.FETCH_STATES`, a row a partition. What becomes
    of each batch is decided by `protocol.rounds.fetch_round`.

    One partition, one join and one projection: this runs in every micro-batch, so its fixed cost is its cost.
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
