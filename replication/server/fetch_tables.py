"""What a fetch round hands to Spark and gets back: header rows, fetch states and batches, as tables and as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from replication.protocol.append_plan import FetchedBatch
from replication.protocol.record_batch import LogEnd, TopicIdPartition
from replication.protocol.replica import Replica
from schemas import FETCH_STATES, RECORD_BATCHES

_OPEN_END = 2**63 - 1


def rows_table(rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Header rows as a table of `schemas.RECORD_BATCHES`."""
    columns = zip(*rows, strict=True)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, RECORD_BATCHES.arrow, strict=True)], RECORD_BATCHES.arrow
    )


def fetch_states_table(
    log_ends: Mapping[TopicIdPartition, LogEnd], leaders: Mapping[TopicIdPartition, Replica]
) -> pa.Table:
    """What is wanted, and the leader's lineage as ranges, as a table of `schemas.FETCH_STATES`."""
    rows = [
        {"topic_id": p.topic_id, "partition": p.partition, "fetch_offset": end.offset, "epochs": _ranges(leaders[p])}
        for p, end in log_ends.items()
    ]
    return pa.Table.from_pylist(rows, FETCH_STATES.arrow)


def _ranges(row: Replica) -> list[dict[str, int]]:
    ends = [*(entry.start_offset for entry in row.epochs[1:]), _OPEN_END]
    return [
        {"leader_epoch": entry.leader_epoch, "start_offset": entry.start_offset, "end_offset": end}
        for entry, end in zip(row.epochs, ends, strict=True)
    ]


def fetched_batch(row: Mapping[str, Any]) -> FetchedBatch:
    """A row of the plan, or of a snapshot, as the batch that it is."""
    partition = TopicIdPartition(row["topic_id"], row["partition"])
    return FetchedBatch(
        partition, row["base_offset"], row["last_offset"], row["leader_epoch"], row["segment"], row["segment_bytes"],
        row["bytes"], row["previous"], row["chain"],
    )  # fmt: skip
