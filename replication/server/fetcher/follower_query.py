"""Starts a follower's streaming query, and keeps a micro-batch of it open. [FT-01, FT-05]

A source in Python would be a process beside the JVM for each query. Six of them that start together on two cores miss
Spark's 10 s, and print stack traces. So the source is in the JVM.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakelog.replication.server.fetcher.follower_session import CHECKPOINTS_IN_THE_BACKGROUND
from lakelog.replication.server.fetcher.open_micro_batch import OpenMicroBatch
from lakelog.replication.storage.delta.storage_root import StorageRoot


class MicroBatchStarts:
    """A streaming source of which each row starts a micro-batch: Spark's `MemoryStream`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._jvm = spark, cast(Any, spark.sparkContext._jvm)
        source = self._jvm.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
        self._source = source.apply(spark._jsparkSession, self._jvm.org.apache.spark.sql.Encoders.STRING())

    def frame(self) -> DataFrame:
        """The stream, with the column `value`."""
        return DataFrame(self._source.toDF(), self._spark)

    def add(self) -> None:
        """Starts a micro-batch, after the one that is under way."""
        self._source.addData(self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(["next"]))


class FollowerQuery:
    """The query called `name`, one start after another. Each micro-batch calls `process`, which runs the rounds of one
    by `open`. `folder` is for its files, on this machine's disk, also if the cluster has another file system by
    default, such as HDFS.
    """

    def __init__(
        self, spark: SparkSession, name: str, folder: StorageRoot, process: Callable[[DataFrame, int], None]
    ) -> None:  # fmt: skip
        self._spark, self._name, self._folder = spark, name, folder
        self._process = process
        self._starts: MicroBatchStarts | None = None
        self.open = OpenMicroBatch()

    def start(self) -> StreamingQuery:
        """Starts the query with a new source and checkpoint, and deletes the older ones. Its first micro-batch begins
        at once."""
        if self._folder.list():
            self._folder.delete_folder()
        started = self._folder.child(uuid.uuid4().hex)
        started.create_folder()
        self._starts = MicroBatchStarts(self._spark)
        self._starts.add()
        writer = self._starts.frame().writeStream.queryName(self._name).foreachBatch(self._process)
        writer = writer.option("checkpointLocation", f"file://{started.path('checkpoint')}")
        return writer.options(**CHECKPOINTS_IN_THE_BACKGROUND).start()

    def go_on(self) -> None:
        """Another micro-batch follows the one that is under way."""
        if self._starts is not None:
            self._starts.add()
