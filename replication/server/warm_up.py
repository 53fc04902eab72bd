"""What a broker does before it registers: the first plan of a new JVM takes seconds, and nobody waits for them yet.

Afterwards its partitions would: a member of the ISR that is slow holds up every record sent with acks=all.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession

from replication.frames.fetch_plan import fetch_plan
from replication.protocol.record_batch import BatchHeader
from replication.server.fetch_tables import rows_table
from replication.storage.record_batches import header_row
from schemas import FETCH_STATES

_NAME = "warm-up"


def warm_up(spark: SparkSession) -> pa.Table:
    """Plans the fetch of one batch that is nowhere, as a micro-batch of a follower does; returns the plan."""
    headers = rows_table([header_row(0, _NAME, 1, BatchHeader(_NAME, _NAME, 0, 0, 0, 0, 0, 0))])
    epochs = [{"leader_epoch": 0, "start_offset": 0, "end_offset": 1}]
    wanted = {"topic_id": _NAME, "partition": 0, "fetch_offset": 0, "epochs": epochs}
    states = pa.Table.from_pylist([wanted], FETCH_STATES.arrow)
    return fetch_plan(spark.createDataFrame(headers), spark.createDataFrame(states)).toArrow()
