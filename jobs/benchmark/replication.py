"""`bench replication`: measures throughput and latency of both followers in turn, and compares their rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakelog.jobs.benchmark.data import DataSet
from lakelog.jobs.benchmark.folder import bench_folder
from lakelog.jobs.benchmark.followers import Follower, LakelogFollower, PlainStream, copy_files
from lakelog.jobs.benchmark.memory import settle_memory
from lakelog.jobs.benchmark.sources import Sources

FILE_COPY = "file copy"
_SMALL = DataSet(1_000, 100)


@dataclass(frozen=True)
class Plan:
    """The measurements and their numbers.

    The first rounds, and the first commits of each round, warm up: they are checked but not counted. `idle_seconds`
    between two commits lets a follower become idle. It is a little more than a follower waits for a new high watermark
    alone.
    """

    rounds: int = 5
    data_sets: tuple[DataSet, ...] = (DataSet(1_000_000, 100), DataSet(200_000, 1000), DataSet(500_000, 1000, True))
    small_commits: int = 6  # a round
    warm_up_rounds: int = 1
    warm_up_commits: int = 3
    idle_seconds: float = 1.2

    @property
    def steps(self) -> int:
        """The number of rounds of all measurements."""
        return (self.warm_up_rounds + self.rounds) * (len(self.data_sets) + 1)


# Checks that the benchmark works. Its figures mean nothing.
QUICK = Plan(1, (DataSet(20_000, 100), DataSet(4_000, 1000, True)), 2, 0, 1, 0.2)


@dataclass
class Measurement:
    """The seconds of each follower, in the order of the measurements, and whether rows were equal after each round."""

    data_set: DataSet
    bytes: int = 0
    segments: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    rows_equal: bool = True

    def add(self, name: str, seconds: Sequence[float]) -> None:
        """Adds measured times in seconds."""
        self.seconds.setdefault(name, []).extend(seconds)


class Bench:
    """Runs a plan. Each round has new tables in a folder that is deleted after it."""

    def __init__(self, spark: SparkSession, plan: Plan, on_step: Callable[[str], None]) -> None:
        self._spark = spark
        self._plan = plan
        self._on_step = on_step

    def throughput(self, data_set: DataSet) -> Measurement:
        """Measures one large commit a round, and a plain copy of the same files."""
        return self._measure(data_set, [data_set.table()], with_copy=True)

    def latency(self) -> Measurement:
        """Measures some small commits a round, one after the other."""
        tables = [_SMALL.table(seed) for seed in range(self._plan.small_commits)]
        return self._measure(_SMALL, tables, with_copy=False)

    def _measure(self, data_set: DataSet, tables: Sequence[pa.Table], *, with_copy: bool) -> Measurement:
        measured = Measurement(data_set)
        for number in range(1 - self._plan.warm_up_rounds, self._plan.rounds + 1):
            found = self._round(data_set, tables, with_copy)
            measured.rows_equal &= found.rows_equal
            measured.bytes, measured.segments = found.bytes, found.segments
            for name, seconds in found.seconds.items() if number > 0 else ():
                measured.add(name, seconds)
            self._on_step(
                f"{data_set.name}, " + (f"round {number} of {self._plan.rounds}" if number > 0 else "warm-up")
            )
        return measured

    def _round(self, data_set: DataSet, tables: Sequence[pa.Table], with_copy: bool) -> Measurement:
        warm_up = [_SMALL.table(-1 - seed) for seed in range(self._plan.warm_up_commits)]
        with bench_folder() as folder:
            sources = Sources(self._spark, folder, [*warm_up, *tables])
            followers = [LakelogFollower(sources), PlainStream(self._spark, sources)]
            seconds = {follower.name: self._run(follower, sources)[len(warm_up) :] for follower in followers}
            counted = sources.appends[len(warm_up) :]
            found = Measurement(data_set, sum(a.bytes for a in counted), sum(len(a.segments) for a in counted))
            for name, measured in seconds.items():
                found.add(name, measured)
            if with_copy:
                found.add(FILE_COPY, [copy_files(a, sources.leader.root, folder / "copy") for a in counted])
            found.rows_equal = self._are_equal(sources, followers)
        return found

    def _run(self, follower: Follower, sources: Sources) -> list[float]:
        """The seconds of each commit. A follower runs only while it is measured, so it does not slow the other
        down."""
        idle, seconds = threading.Event(), []
        follower.start()
        try:
            for appended in sources.appends:
                settle_memory(sources.folder, appended.bytes)
                seconds.append(follower.follow(appended))
                idle.wait(self._plan.idle_seconds)
        finally:
            follower.stop()
        return seconds

    def _are_equal(self, sources: Sources, followers: Sequence[Follower]) -> bool:
        tables = [sources.leader.root, *(follower.target for follower in followers)]
        frames = [self._spark.read.format("delta").load(table.spark_uri) for table in tables]
        found = {tuple(checksum(frame).collect()[0]) for frame in frames}
        return len(found) == 1 and next(iter(found))[0] == sum(appended.records for appended in sources.appends)


def checksum(records: DataFrame) -> DataFrame:
    """One row: the number of records, and the sum of a hash over all columns; the same for equal rows in any order."""
    hashed = F.xxhash64(*sorted(records.columns)).cast("decimal(38,0)")
    return records.agg(F.count("*").alias("records"), F.sum(hashed).alias("checksum"))
