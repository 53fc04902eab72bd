"""The Spark session that a broker's queries run in."""

from __future__ import annotations

from pyspark.sql import SparkSession

from lakelog.replication.server.spark_check import check_spark

# A micro-batch plans a handful of header rows: compiling code for it, or planning it adaptively, costs more than it
# saves. Set on a session of the broker's own, so that the user's stays as it is.
_SESSION = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.pollingDelay": "50ms",
}


def follower_session(spark: SparkSession) -> SparkSession:
    """A session of its own for small micro-batches; the one given stays as it is.

    Raises InvalidConfigurationException for a session that cannot run a follower.
    """
    check_spark(spark)
    session = spark.newSession()
    for key, value in _SESSION.items():
        session.conf.set(key, value)
    return session
