"""What a fetch round hands to Spark and gets back: header rows, fetch states and batches, as tables and as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from replication.protocol.append_plan import FetchedBatch
from replication.protocol.record_batch import LogEnd, TopicIdPartition
from schemas import FETCH_STATES, RECORD_BATCHES, Table


def rows_table(rows: Iterable[tuple[Any, ...]], table: Table = RECORD_BATCHES) -> pa.Table:
    """Rows, of which there is one at least, as an Arrow table of that schema."""
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, table.arrow, strict=True)], table.arrow)


def fetch_states_table(log_ends: Mapping[TopicIdPartition, LogEnd]) -> pa.Table:
    """The partitions that are fetched, and from where, as a table of `schemas.FETCH_STATES`."""
    return rows_table(((*partition, end.offset) for partition, end in log_ends.items()), FETCH_STATES)


def fetched_batch(row: Mapping[str, Any]) -> FetchedBatch:
    """A row of the plan, or of a snapshot, as the batch that it is."""
    partition = TopicIdPartition(row["topic_id"], row["partition"])
    return FetchedBatch(
        partition, row["base_offset"], row["last_offset"], row["leader_epoch"], row["segment"], row["segment_bytes"],
        row["bytes"], row["previous"], row["chain"],
    )  # fmt: skip
