"""`bench replication`: throughput and latency of both followers, alternating, and whether they have the same rows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.benchmark.data import DataSet
from jobs.benchmark.followers import Follower, LakelogFollower, PlainStream, copy_files
from jobs.benchmark.sources import Append, Sources

FILE_COPY = "file copy"
_SMALL = DataSet(1_000, 100)
_WARM_UP = 3  # small commits that a follower replicates after its start, before it is measured


@dataclass(frozen=True)
class Plan:
    """What is measured, and how often."""

    rounds: int
    data_sets: tuple[DataSet, ...] = (DataSet(1_000_000, 100), DataSet(200_000, 1000))
    small_commits: int = 6  # of each round

    @property
    def steps(self) -> int:
        """Rounds of all measurements, with those that warm up."""
        return (self.rounds + 1) * (len(self.data_sets) + 1)


@dataclass
class Measurement:
    """The seconds of each follower, in the order they were measured, and whether rows were equal after each round."""

    data_set: DataSet
    bytes: int = 0
    segments: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    rows_equal: bool = True

    def add(self, name: str, seconds: Sequence[float]) -> None:
        """Takes measured times in."""
        self.seconds.setdefault(name, []).extend(seconds)


class Bench:
    """Runs a plan. Each round has new tables, in a folder that is deleted after it."""

    def __init__(self, spark: SparkSession, plan: Plan, on_step: Callable[[str], None]) -> None:
        self._spark = spark
        self._plan = plan
        self._on_step = on_step

    def throughput(self, data_set: DataSet) -> Measurement:
        """One large commit a round."""
        return self._measure(data_set, [data_set.table()], with_copy=True)

    def latency(self) -> Measurement:
        """Some small commits a round, one after the other."""
        tables = [_SMALL.table(seed) for seed in range(self._plan.small_commits)]
        return self._measure(_SMALL, tables, with_copy=False)

    def _measure(self, data_set: DataSet, tables: Sequence[pa.Table], *, with_copy: bool) -> Measurement:
        measurement = Measurement(data_set)
        for number in range(self._plan.rounds + 1):
            self._on_step(f"{data_set.name}, " + (f"round {number} of {self._plan.rounds}" if number else "warm-up"))
            found = self._round(Measurement(data_set), tables, number, with_copy)
            measurement.rows_equal &= found.rows_equal
            measurement.bytes, measurement.segments = found.bytes, found.segments
            for name, seconds in found.seconds.items() if number else ():
                measurement.add(name, seconds)
        return measurement

    def _round(self, found: Measurement, tables: Sequence[pa.Table], number: int, with_copy: bool) -> Measurement:
        warm_up = [_SMALL.table(-1 - seed) for seed in range(_WARM_UP)]
        with _folder() as folder:
            sources = Sources(self._spark, folder, [*warm_up, *tables])
            measured = sources.appends[_WARM_UP:]
            followers = [LakelogFollower(sources), PlainStream(self._spark, sources)]
            for follower in followers if number % 2 else reversed(followers):
                found.add(follower.name, _run(follower, sources.appends))
            if with_copy:
                found.add(FILE_COPY, [copy_files(a, sources.leader.root, folder / "copy") for a in measured])
            found.bytes, found.segments = sum(a.bytes for a in measured), sum(len(a.segments) for a in measured)
            roots = [sources.leader.root, *(follower.target for follower in followers)]
            found.rows_equal = self._are_equal([root.spark_uri for root in roots], sum(a.records for a in sources.appends))
        return found

    def _are_equal(self, tables: Sequence[str], records: int) -> bool:
        found = [tuple(checksum(self._spark.read.format("delta").load(table)).collect()[0]) for table in tables]
        return len(set(found)) == 1 and found[0][0] == records


def _run(follower: Follower, appends: Sequence[Append]) -> list[float]:
    """The seconds of each commit after the warm-up; the follower runs only as long as it is measured."""
    follower.start()
    try:
        return [follower.follow(appended) for appended in appends][_WARM_UP:]
    finally:
        follower.stop()


def checksum(records: DataFrame) -> DataFrame:
    """Number of rows, and the sum of a hash of all columns of each: the same for the same rows in any order."""
    columns = sorted(records.columns)
    return records.agg(F.count("*").alias("rows"), F.sum(F.xxhash64(*columns).cast("decimal(38,0)")).alias("checksum"))


@contextmanager
def _folder() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="lakelog-bench-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
