"""Converts between a fetch and Spark: fetch states and header rows to Arrow tables, and planned rows to batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.replication.protocol.append_plan import FetchedBatch
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.schemas import FETCH_STATES, RECORD_BATCHES, Table

# The fields of `FetchedBatch`, in their order.
_BATCH = [*TopicIdPartition._fields, *FetchedBatch._fields[1:]]


def rows_table(rows: Iterable[tuple[Any, ...]], table: Table = RECORD_BATCHES) -> pa.Table:
    """Rows, at least one, as an Arrow table with the columns of `table`."""
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, table.arrow, strict=True)], table.arrow)


def fetch_states_table(log_ends: Mapping[TopicIdPartition, LogEnd]) -> pa.Table:
    """At least one partition with its fetch offset, as a table with the columns of `schemas.FETCH_STATES`."""
    return rows_table(((*partition, end.offset) for partition, end in log_ends.items()), FETCH_STATES)


def fetched_batches(planned: pa.Table) -> list[FetchedBatch]:
    """The rows of `frames.fetch_plan` as batches, without the gaps."""
    columns = planned.filter(pc.is_null(planned["gap"])).select(_BATCH).to_pydict().values()
    return [FetchedBatch(TopicIdPartition(*row[:2]), *row[2:]) for row in zip(*columns, strict=True)]
