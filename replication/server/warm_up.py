"""Runs a micro-batch before a broker registers, because the first one in a new JVM takes seconds.

After registration it would delay the broker's partitions: a slow member of the ISR holds up all records with acks=all.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time

from pyspark.sql import DataFrame, SparkSession

from lakelog.replication.frames.fetch_plan import fetch_plan
from lakelog.replication.protocol.record_batch import BatchHeader, LogEnd, TopicIdPartition
from lakelog.replication.server.fetcher.arrow_tables import fetch_states_table, rows_table
from lakelog.replication.server.spark_check import check_spark
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.header_source import read_headers
from lakelog.replication.storage.log.header_stream import HeaderStream, header_row

logger = logging.getLogger(__name__)

_NAME = "warm-up"
_PATIENCE_SECONDS, _LOOK_SECONDS = 60.0, 0.1


def warm_up(spark: SparkSession, root: StorageRoot, broker_id: int, cluster: StorageRoot) -> list[dict[str, object]]:
    """Plans the fetch of one made-up batch, in a micro-batch of a stream like a follower's. Returns the rows of the
    plan; none if the micro-batch did not run within a minute.

    Raises InvalidConfigurationException if the session cannot run a broker. It only logs other errors, because the
    first real fetch reports them.
    """
    check_spark(spark)
    planned: list[dict[str, object]] = []
    done = threading.Event()

    def process(headers: DataFrame, _: int) -> None:
        planned.extend(_plan(headers))
        done.set()

    with tempfile.TemporaryDirectory(prefix="lakelog-warm-up-", ignore_cleanup_errors=True) as checkpoint:
        try:
            stream = read_headers(spark, HeaderStream(root, broker_id, cluster))
            query = stream.writeStream.foreachBatch(process).option("checkpointLocation", checkpoint).start()
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while query.isActive and time.monotonic() < deadline and not done.wait(_LOOK_SECONDS):
                pass
            query.stop()
        except Exception:  # Spark's errors too
            logger.warning("broker %d: the warm-up has failed", broker_id, exc_info=True)
    return planned


def _plan(headers: DataFrame) -> list[dict[str, object]]:
    batch = rows_table([header_row(0, _NAME, 1, BatchHeader(_NAME, _NAME, 0, 0, 0, 0, 0, 0))])
    states = fetch_states_table({TopicIdPartition(_NAME, 0): LogEnd(0, "")})
    spark = headers.sparkSession
    plan = fetch_plan(headers.unionByName(spark.createDataFrame(batch)), spark.createDataFrame(states))
    return list(plan.toArrow().to_pylist())
