"""The two followers that the benchmark compares. Each runs, and is idle when records are committed to its source."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakelog.replication.errors import TimeoutException
from lakelog.replication.storage.delta.commit_reader import commit_name, last_version, read_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.verification.bench.memory import settle_memory
from lakelog.verification.bench.sources import FOLLOWER, Append, Sources

_POLL_SECONDS = 0.001
_TIMEOUT_SECONDS = 120.0


class Follower:
    """Copies commits of its source to `target` between `start` and `stop`."""

    name: str
    target: StorageRoot
    _commit: Callable[[Append], float]

    def start(self) -> None:
        """Starts to follow."""

    def stop(self) -> None:
        """Stops following."""

    def follow(self, appended: Append) -> float:
        """Commits to the source, and returns the seconds until the target's commits have all records."""
        known = last_version(self.target)
        committed = self._commit(appended)
        return self._wait_for(appended.records, known) - committed

    def _wait_for(self, records: int, known: int) -> float:
        pause, deadline = threading.Event(), time.monotonic() + _TIMEOUT_SECONDS
        while records > 0:
            while not self.target.exists(commit_name(known + 1)):
                if time.monotonic() > deadline:
                    raise TimeoutException(f"{self.name}: {records} records are missing after {_TIMEOUT_SECONDS:.0f} s")
                pause.wait(_POLL_SECONDS)
            seen, known = time.time(), known + 1
            records -= sum(json.loads(file.stats).get("numRecords", 0) for file in read_commit(self.target, known).adds)
        return seen


class LakelogFollower(Follower):
    """A broker that follows another one, with all duties of both."""

    name = "lakelog"

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._commit = sources.commit_to_leader
        self.target = sources.log_of(FOLLOWER)

    def start(self) -> None:
        self._sources.begin()

    def stop(self) -> None:
        self._sources.cluster.stop()


class PlainStream(Follower):
    """`readStream.format("delta") → writeStream.format("delta")`, and nothing else."""

    name = "plain stream"

    def __init__(self, spark: SparkSession, sources: Sources) -> None:
        self._spark = spark
        self._source = sources.mirror.root
        self._checkpoint = sources.folder / "plain-checkpoint"
        self._commit = sources.commit_to_mirror
        self.target = StorageRoot.of(str(sources.folder / "plain-target"))
        self._query: StreamingQuery | None = None

    def start(self) -> None:
        source = self._spark.readStream.format("delta").load(self._source.spark_uri)
        writer = source.writeStream.format("delta").option("checkpointLocation", str(self._checkpoint))
        self._query = writer.start(self.target.spark_uri)

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()


def copy_files(appended: Append, source: StorageRoot, folder: Path) -> float:
    """Copies the segments as a shell would, without fsync. Returns the seconds that it took."""
    target = StorageRoot.of(str(folder))
    target.create_folder()
    settle_memory(appended.bytes)
    started = time.perf_counter()
    for segment in appended.segments:
        shutil.copyfile(source.path(segment.name), target.path(segment.name))
    return time.perf_counter() - started
