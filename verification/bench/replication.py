"""`bench replication`: measures throughput and latency of both followers in turn, and compares their rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakelog.verification.bench.data import DataSet
from lakelog.verification.bench.folder import bench_folder
from lakelog.verification.bench.followers import Follower, LakelogFollower, PlainStream, copy_files
from lakelog.verification.bench.memory import settle_memory
from lakelog.verification.bench.sources import Sources

FILE_COPY = "file copy"
SMALL = DataSet(1_000, 100)


@dataclass(frozen=True)
class Plan:
    """The measurements and their numbers.

    A round before the others warms up with a tenth of the records, and the first commits of each round do too: they are
    checked but not counted. `seconds`: no round begins that would not end in this time, but the first. `idle_seconds`
    between two commits lets a follower become idle. It is a little more than a follower waits for a new high watermark
    alone.
    """

    rounds: int = 3
    seconds: float = 150.0
    data_sets: tuple[DataSet, ...] = (DataSet(1_000_000, 100), DataSet(200_000, 1000), DataSet(500_000, 1000, True))
    small_commits: int = 4  # a round
    warms_up: bool = True
    warm_up_commits: int = 3
    idle_seconds: float = 1.2

    @property
    def steps(self) -> int:
        """The number of rounds."""
        return self.warms_up + self.rounds

    def on_disk(self, bytes_per_second: float) -> Plan:
        """The plan with as many of the random records as a disk of this speed writes in half a minute a round: two
        logs, the table of the plain stream and the copy."""
        most = max(_LEAST_BYTES, bytes_per_second * _DISK_SECONDS / _COPIES)
        return replace(
            self, data_sets=tuple(_smaller(each, most) if each.is_random else each for each in self.data_sets)
        )


_LEAST_BYTES, _DISK_SECONDS, _COPIES = 20_000_000, 30.0, 4


def _smaller(data_set: DataSet, most: float) -> DataSet:
    """A data set of at most about so many bytes of values."""
    return replace(data_set, records=min(data_set.records, int(most // data_set.value_bytes)))


# Checks that the benchmark works. Its figures mean nothing.
QUICK = Plan(1, 150.0, (DataSet(20_000, 100), DataSet(4_000, 1000, True)), 2, False, 1, 0.2)


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

    def run(self) -> list[Measurement]:
        """Measures, in each round, one large commit of each data set beside a plain copy of the same files, and some
        small commits, one after the other. Returns a measurement for each data set, and that of the small commits."""
        plan, until, longest = self._plan, time.monotonic() + self._plan.seconds, 0.0
        tables = [data_set.table() for data_set in plan.data_sets]
        measured = [Measurement(data_set) for data_set in (*plan.data_sets, SMALL)]
        if plan.warms_up:
            self._round([table.slice(0, table.num_rows // 10) for table in tables], measured, is_counted=False)
            self._on_step("warm-up")
        for number in range(1, plan.rounds + 1):
            begun = time.monotonic()
            if number > 1 and begun + longest > until:
                break
            self._round(tables, measured, is_counted=True)
            self._on_step(f"round {number} of {plan.rounds}")
            longest = max(longest, time.monotonic() - begun)
        return measured

    def _round(self, tables: Sequence[pa.Table], measured: Sequence[Measurement], *, is_counted: bool) -> None:
        plan = self._plan
        warm_up = [SMALL.table(-1 - seed) for seed in range(plan.warm_up_commits)]
        small = [SMALL.table(seed) for seed in range(plan.small_commits)]
        with bench_folder() as folder:
            sources = Sources(self._spark, folder, [*warm_up, *small, *tables])
            followers = [LakelogFollower(sources), PlainStream(self._spark, sources)]
            seconds = {follower.name: self._run(follower, sources)[len(warm_up) :] for follower in followers}
            counted = sources.appends[len(warm_up) :]
            places = [*(range(n, n + 1) for n in range(len(small), len(counted))), range(len(small))]
            are_equal = self._are_equal(sources, followers)
            for measurement, place in zip(measured, places, strict=True):
                measurement.rows_equal &= are_equal
                if not is_counted:
                    continue
                appends = counted[place.start : place.stop]
                measurement.bytes = sum(appended.bytes for appended in appends)
                measurement.segments = sum(len(appended.segments) for appended in appends)
                for name, found in seconds.items():
                    measurement.add(name, found[place.start : place.stop])
                if measurement.data_set is not SMALL:
                    copied = [copy_files(appended, sources.leader.root, folder / "copy") for appended in appends]
                    measurement.add(FILE_COPY, copied)

    def _run(self, follower: Follower, sources: Sources) -> list[float]:
        """The seconds of each commit. A follower runs only while it is measured, so it does not slow the other
        down."""
        idle, seconds = threading.Event(), []
        follower.start()
        try:
            for appended in sources.appends:
                settle_memory(appended.bytes)
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
