"""`bench replication`: measures throughput and latency of both followers in turn, and compares their rows."""

from __future__ import annotations

import json
import mmap
import os
import platform
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.clients.admin import TopicDescription
from lakelog.replication.clients.record_set import record_set
from lakelog.replication.config import Config
from lakelog.replication.errors import LakelogException, TimeoutException
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.protocol.append import AppendPosition, PartitionAppend
from lakelog.replication.protocol.chain import genesis
from lakelog.replication.protocol.fetch_state import FollowerState
from lakelog.replication.protocol.producer_state import increment_sequence
from lakelog.replication.protocol.record_batch import LogEnd, TopicIdPartition
from lakelog.replication.storage.delta.commit_format import commit_name, last_version, read_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_append import append
from lakelog.replication.storage.log.replica_log import LogChange, ReplicaLog
from lakelog.replication.storage.log.segment import Segment
from lakelog.replication.storage.tables.producer_table import new_producer_id
from lakelog.replication.storage.tables.replica_table import ReplicaTable
from lakelog.schemas import LOG
from lakelog.verification.bench.measuring import DataSet, bench_folder

LEADER, FOLLOWER = 1, 2
TOPIC, PARTITIONS = "bench", 12
FILE_COPY = "file copy"
SMALL = DataSet(1_000, 100)
_SEGMENT_BYTES = Config().log_segment_bytes
_LEAST_BYTES, _DISK_SECONDS, _COPIES = 20_000_000, 30.0, 4
_POLL_SECONDS = 0.001
_TIMEOUT_SECONDS = 120.0
_PIECE_BYTES, _PROBE_BYTES, _PROBE_SECONDS = 1 << 20, 64 << 20, 2.0
_PACKAGES = ("lakelog", "pyspark", "delta-spark", "deltalake", "obstore", "pyarrow")


@dataclass(frozen=True)
class Append:
    """Records that are in segments of the leader's log but not yet committed."""

    requests: tuple[PartitionAppend, ...]
    segments: tuple[Segment, ...]

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(request.records for request in self.requests)

    @property
    def bytes(self) -> int:
        """The size of the segments in bytes."""
        return sum(segment.file.size for segment in self.segments)


class Sources:
    """A cluster of a leader and a follower with one topic, and the table beside it.

    All records are written once, before the measurements, under the current leader epoch; a restarted cluster has
    another one. A commit makes them visible in one of the two places. Hard links let both followers read the same bytes
    from the same place on disk.
    """

    def __init__(self, spark: SparkSession, folder: Path, tables: Sequence[pa.Table]) -> None:
        self.folder = folder
        self.cluster = LocalCluster(spark, str(folder / "lakelog"), brokers=2)
        self.mirror = ReplicaLog.create(StorageRoot.of(str(folder / "plain-source")))
        self._producer_id = new_producer_id()
        self._ends: dict[TopicIdPartition, LogEnd] = {}
        self._tables = tables
        self.appends: list[Append] = []

    def begin(self) -> None:
        """Starts the cluster and writes the records."""
        self.cluster.start()
        self.leader = ReplicaLog.open(self.log_of(LEADER))
        topic = self._create_topic()
        self.appends = [self._write(topic, table) for table in self._tables]

    def log_of(self, broker_id: int) -> StorageRoot:
        """The root of a broker's log."""
        return StorageRoot.of(self.cluster.broker_uri(broker_id)).child(LOG.name)

    def _create_topic(self) -> TopicDescription:
        """Creates the topic, and waits until its leader's log accepts appends and its follower fetches."""
        assignment = dict.fromkeys(range(PARTITIONS), (LEADER, FOLLOWER))
        topic = self.cluster.admin().create_topic(TOPIC, assignment=assignment)
        rows = ReplicaTable.open(StorageRoot.of(self.cluster.broker_uri(FOLLOWER)))
        wait_until(lambda: _fetches(rows, topic), "the follower of a new topic begins to fetch", 60, 0.05)
        return topic

    def _write(self, topic: TopicDescription, table: pa.Table) -> Append:
        """Does the work of `Producer.send` up to the commit."""
        with record_set(TOPIC, table, PARTITIONS, _SEGMENT_BYTES) as given:
            requests = self._requests(topic, given.counts)
            ends = {p: self._end(p) for p in (r.topic_id_partition for r in requests)}
            positions = {p: AppendPosition(end.offset, chain=end.chain) for p, end in ends.items()}
            segments = given.write(self.leader.root, LEADER, requests, positions)
        for header in (header for segment in segments for header in segment.headers):
            self._ends[header.topic_id_partition] = LogEnd(header.next_offset, header.chain)
        return Append(tuple(requests), tuple(segments))

    def _end(self, partition: TopicIdPartition) -> LogEnd:
        return self._ends.get(partition, LogEnd(0, genesis(partition)))

    def _requests(self, topic: TopicDescription, counts: Mapping[int, int]) -> list[PartitionAppend]:
        return [
            PartitionAppend(
                topic=TOPIC,
                topic_id=r.topic_id,
                partition=r.partition,
                replicas=r.replicas,
                leader_epoch=r.leader_epoch,
                records=counts[r.partition],
                producer_id=self._producer_id,
                producer_epoch=0,
                base_sequence=increment_sequence(0, self._end(r.topic_id_partition).offset),
            )
            for r in topic.partitions
            if r.partition in counts
        ]

    def commit_to_leader(self, appended: Append) -> float:
        """Commits to the leader's log as a producer does. Returns the time of the commit in seconds since the epoch."""
        outcomes = append(self.leader, appended.requests, lambda _: appended.segments, lambda *_: (), "bench")
        for outcome in outcomes.values():
            if isinstance(outcome, LakelogException):
                raise outcome
        return committed_at(self.leader.root, self.leader.current().version)

    def commit_to_mirror(self, appended: Append) -> float:
        """Commits the same files to the table beside the log, with the same code. Returns the time of the commit in s
        since the epoch."""
        for segment in appended.segments:
            os.link(self.leader.root.path(segment.name), self.mirror.root.path(segment.name))
        self.mirror.transact({"who": "bench", "why": "append"}, lambda _: LogChange(adds=appended.segments))
        return committed_at(self.mirror.root, self.mirror.current().version)


def _fetches(follower: ReplicaTable, topic: TopicDescription) -> bool:
    follower.refresh()
    states = [row.state for row in follower.replicas.values()]
    return states == [FollowerState.FETCHING] * len(topic.partitions)


def committed_at(table: StorageRoot, version: int) -> float:
    """The time at which a version was written, in seconds since the epoch."""
    return os.stat(table.path(commit_name(version))).st_mtime_ns / 1e9


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


def settle_memory(size: int) -> None:
    """Waits until earlier files are on disk, because the kernel would write them during the measurement. Then it uses
    memory of twice `size` bytes, if so much is free, and frees it.

    The next files get that memory. A virtual machine may have given other free memory back to its host: with such
    memory a copy of 504 MB took 1.2 s instead of 0.12 s.
    """
    os.sync()
    free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    length = min(2 * size, free * 3 // 4)
    if length:
        with mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            for page in range(0, length, mmap.PAGESIZE):
                memory[page] = 1


def write_speed(folder: Path) -> float:
    """The bytes a second that the disk of a folder takes: those of a file of 64 MB, or of two seconds."""
    os.sync()
    probe, piece, size = folder / "probe", os.urandom(_PIECE_BYTES), 0
    started = time.perf_counter()
    try:
        with probe.open("wb") as file:
            while size < _PROBE_BYTES and time.perf_counter() - started < _PROBE_SECONDS:
                size += file.write(piece)
                os.fsync(file.fileno())
        return size / (time.perf_counter() - started)
    finally:
        probe.unlink(missing_ok=True)


_LAKELOG, _PLAIN = LakelogFollower.name, PlainStream.name


@dataclass(frozen=True)
class Results:
    """The measurements of one run. `plan`: before it was made to fit the disk. `disk_bytes_per_second`: what the disk
    writes."""

    plan: Plan
    disk_bytes_per_second: float
    throughput: Sequence[Measurement]
    latency: Measurement

    @property
    def rounds(self) -> int:
        """The number of rounds that were measured."""
        return max(len(each.seconds.get(_LAKELOG, ())) for each in self.throughput)

    @property
    def reductions(self) -> list[str]:
        """What was left out of the plan, because the disk or the machine is slow."""
        planned, measured = ([each.name for each in sets] for sets in (self.plan.data_sets, self._data_sets))
        speed = f"the disk writes {self.disk_bytes_per_second / 1e6:,.0f} MB/s"
        found = [
            f"{one} instead of {other}: {speed}" for one, other in zip(measured, planned, strict=True) if one != other
        ]
        if self.rounds < self.plan.rounds:
            found.append(f"{self.rounds} of {self.plan.rounds} rounds: more take longer than {self.plan.seconds:.0f} s")
        return found

    @property
    def _data_sets(self) -> list[DataSet]:
        return [measurement.data_set for measurement in self.throughput]

    @property
    def all(self) -> list[Measurement]:
        """All measurements."""
        return [*self.throughput, self.latency]


def figures(results: Results) -> dict[str, object]:
    """All figures. If rows differ, the times mean nothing and are left out."""
    differing = [m.data_set.name for m in results.all if not m.rows_equal]
    if differing:
        return {"rows_equal": False, "rows_differ_in": differing, "rounds": results.rounds, **circumstances()}
    throughput, latency = results.throughput, results.latency
    return {
        "rows_equal": True,
        "throughput_vs_plain_stream": min(_ratio(m, _PLAIN, _LAKELOG) for m in throughput),
        "latency_vs_plain_stream": _ratio(latency, _LAKELOG, _PLAIN),
        "time_vs_file_copy": max(_ratio(m, _LAKELOG, FILE_COPY) for m in throughput),
        "throughput": [_throughput(m) for m in throughput],
        "latency": {**_basics(latency), "vs_plain_stream": _ratio(latency, _LAKELOG, _PLAIN)},
        "rounds": results.rounds,
        "reductions": results.reductions,
        "disk_mb_per_s": round(results.disk_bytes_per_second / 1e6),
        **circumstances(),
    }


def _throughput(m: Measurement) -> dict[str, object]:
    seconds = median(m.seconds[_LAKELOG])
    return {
        **_basics(m),
        "vs_plain_stream": _ratio(m, _PLAIN, _LAKELOG),
        "vs_plain_stream_by_round": _ratios(m, _PLAIN, _LAKELOG),
        "time_vs_file_copy": _ratio(m, _LAKELOG, FILE_COPY),
        "lakelog_records_per_second": round(m.data_set.records / seconds),
        "lakelog_bytes_per_second": round(m.bytes / seconds),
    }


def _basics(m: Measurement) -> dict[str, object]:
    return {
        "data_set": m.data_set.name,
        "records": m.data_set.records,
        "value_bytes": m.data_set.value_bytes,
        "segments": m.segments,
        "segment_bytes": m.bytes,
        "seconds": {name: summary(seconds) for name, seconds in m.seconds.items()},
    }


def summary(seconds: Sequence[float]) -> dict[str, object]:
    """The median, the range and all of some times in seconds."""
    return {
        "median": round(median(seconds), 4),
        "min": round(min(seconds), 4),
        "max": round(max(seconds), 4),
        "measured": [round(value, 4) for value in seconds],
    }


def _ratio(m: Measurement, one: str, other: str) -> float:
    return round(median(m.seconds[one]) / median(m.seconds[other]), 3)


def _ratios(m: Measurement, one: str, other: str) -> list[float]:
    return [round(a / b, 3) for a, b in zip(m.seconds[one], m.seconds[other], strict=True)]


def circumstances() -> dict[str, object]:
    """The machine and the versions that the figures depend on."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
    load = [round(value, 2) for value in os.getloadavg()]
    return {"cores": len(os.sched_getaffinity(0)), "load_average": load, "versions": versions}


def rows(results: Results) -> list[Row]:
    """One row for each follower and data set."""
    return [
        _row(m, "latency" if m is results.latency else "throughput", name) for m in results.all for name in m.seconds
    ]


def _row(m: Measurement, kind: str, name: str) -> Row:
    seconds = m.seconds[name]
    return {
        "measured": kind,
        "each_commit": m.data_set.name,
        "by": name,
        "median_ms": round(median(seconds) * 1000),
        "min_ms": round(min(seconds) * 1000),
        "max_ms": round(max(seconds) * 1000),
        "commits": len(seconds),
        "lakelog_takes": "" if name == _LAKELOG else f"{_ratio(m, _LAKELOG, name):.2f} of it",
    }


def measure(spark: SparkSession, plan: Plan) -> Results:
    """Runs the plan, with smaller commits if the disk is slow."""
    with bench_folder() as folder:
        speed = write_speed(folder)
    with counting_bar() as progress:
        task = progress.add_task("measuring", total=plan.steps)
        bench = Bench(spark, plan.on_disk(speed), lambda done: progress.update(task, advance=1, description=done))
        *throughput, latency = bench.run()
    return Results(plan, speed, throughput, latency)
