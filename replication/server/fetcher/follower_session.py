"""The Spark session that a broker's queries run in."""

from __future__ import annotations

from pyspark.sql import SparkSession

from lakelog.replication.server.spark_check import check_spark

# A micro-batch plans a few header rows, so generated code and adaptive planning cost more than they save. They are
# switched off in a session of the broker's own, so that the user's session stays as it is.
_SESSION = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.pollingDelay": "50ms",
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
