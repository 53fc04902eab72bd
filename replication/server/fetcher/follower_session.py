"""The Spark session that a broker's queries run in."""

from __future__ import annotations

from pyspark.sql import SparkSession

from lakelog.replication.server.spark_check import check_spark

# A micro-batch runs no job. Generated code and adaptive planning would only add to its plan: they are off, in a session
# of the broker's own, and the user's session stays as it is. A query looks for the next micro-batch only between two.
_SESSION = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.metadataCache.enabled": "true",  # without it Spark writes no checkpoints in the background
    "spark.sql.streaming.pollingDelay": "10ms",
}

# Spark writes the query's offsets now and then and waits for none. It allows that only for sinks that need no exact
# offsets, which it knows by their names. This one needs none at all: a start begins with a new checkpoint.
CHECKPOINTS_IN_THE_BACKGROUND = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": "10000",
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}


def follower_session(spark: SparkSession) -> SparkSession:
    """A new session for small micro-batches; the given session stays as it is.

    Raises InvalidConfigurationException if the given session cannot run a broker.
    """
    check_spark(spark)
    session = spark.newSession()
    for key, value in _SESSION.items():
        session.conf.set(key, value)
    return session
