"""Starts a follower's streaming query, and tells it of new segments. [FT-01, FT-05]"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakelog.replication.server.fetcher.follower_session import CHECKPOINTS_IN_THE_BACKGROUND
from lakelog.replication.server.fetcher.open_micro_batch import OpenMicroBatch
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.bell import STOPS, Bell
from lakelog.replication.storage.log.segment_source import stream_segments
from lakelog.replication.storage.log.segment_stream import SegmentStream


class FollowerQuery:
    """The query called `name`, one start after another. Each micro-batch calls `process`.

    `folder` is for its files, on this machine's disk, also if the cluster has another file system by default, such as
    HDFS. A micro-batch waits `wait_max_ms` for more news: `process` runs the rounds of one by `open`. An idle query
    asks for news as rarely as `SegmentStream` says.
    """

    def __init__(
        self, spark: SparkSession, name: str, folder: StorageRoot, wait_max_ms: int,
        process: Callable[[DataFrame, int], None],
    ) -> None:  # fmt: skip
        self._spark, self._name, self._folder = spark, name, folder
        self._wait_max_ms, self._process = wait_max_ms, process
        self._bell: Bell | None = None
        self.open = OpenMicroBatch(wait_max_ms / 1000)

    def start(self) -> StreamingQuery:
        """Starts the query with a new checkpoint and bell, and deletes the older ones."""
        self.close()
        if self._folder.list():
            self._folder.delete_folder()
        started = self._folder.child(uuid.uuid4().hex)
        started.create_folder()
        self._bell = Bell.make(started.path("bell"))
        stream = SegmentStream(self._name, self._bell.path, self._wait_max_ms)
        writer = stream_segments(self._spark, stream).writeStream.queryName(self._name).foreachBatch(self._process)
        writer = writer.option("checkpointLocation", f"file://{started.path('checkpoint')}")
        return writer.options(**CHECKPOINTS_IN_THE_BACKGROUND).start()

    def ring(self, version: int) -> None:
        """The leader's log has new segments up to this version: tells the open micro-batch, or starts one."""
        if not self.open.tell() and self._bell is not None:
            self._bell.ring(version)

    def let_stop(self) -> None:
        """Ends the wait of the source, because Spark cannot stop the query before."""
        if self._bell is not None:
            self._bell.ring(STOPS)

    def close(self) -> None:
        """Lets go of the bell of the last start."""
        if self._bell is not None:
            self._bell.close()
            self._bell = None
