"""Runs a micro-batch before a broker registers, because the first one in a new JVM takes seconds.

After registration it would delay the broker's partitions: a slow member of the ISR holds up all records with acks=all.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time

from pyspark.sql import DataFrame, SparkSession

from lakelog.replication.server.fetcher.follower_session import CHECKPOINTS_IN_THE_BACKGROUND, follower_session
from lakelog.replication.storage.log.segment_source import stream_segments
from lakelog.replication.storage.log.segment_stream import SegmentStream

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS, _LOOK_SECONDS = 60.0, 0.1


def warm_up(spark: SparkSession, broker_id: int) -> bool:
    """Runs a micro-batch of a stream like a follower's. Returns whether it ran within a minute.

    Raises InvalidConfigurationException if the session cannot run a broker. It only logs other errors, because the
    first real fetch reports them.
    """
    session, done = follower_session(spark), threading.Event()

    def process(_: DataFrame, __: int) -> None:
        done.set()

    with tempfile.TemporaryDirectory(prefix="lakelog-warm-up-", ignore_cleanup_errors=True) as checkpoint:
        try:
            stream = stream_segments(session, SegmentStream())
            writer = stream.writeStream.foreachBatch(process).option("checkpointLocation", f"file://{checkpoint}")
            query = writer.options(**CHECKPOINTS_IN_THE_BACKGROUND).start()
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while query.isActive and time.monotonic() < deadline and not done.wait(_LOOK_SECONDS):
                pass
            query.stop()
        except Exception:  # Spark's errors too
            logger.warning("broker %d: the warm-up has failed", broker_id, exc_info=True)
    return done.is_set()
