"""`bench maintenance`: compacts small files, and makes thousands of commits on one log with its usual maintenance."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pyarrow as pa
from pyspark.sql import SparkSession

from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.waiting import wait_until
from lakelog.replication.clients.producer import Producer
from lakelog.replication.config import Config
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.protocol.compaction import size_class
from lakelog.replication.protocol.partition_log import LEADER, Role
from lakelog.replication.protocol.record_batch import TopicIdPartition
from lakelog.replication.storage.delta.commit_format import last_version, read_commit
from lakelog.replication.storage.delta.storage_root import StorageRoot
from lakelog.replication.storage.log.log_compaction import compact
from lakelog.replication.storage.log.replica_log import ReplicaLog
from lakelog.schemas import LOG
from lakelog.verification.bench.measuring import DataSet, bench_folder
from lakelog.verification.bench.produce import BROKERS, TOPIC, ProduceRun, Sends
from lakelog.verification.bench.produce import PARTITIONS as SENT_TO
from lakelog.verification.bench.replication import checksum, circumstances
from lakelog.verification.bench.small_commits import SmallCommits

_WITHOUT: Mapping[str, object] = {"log.cleaner.enable": "false"}
_BESIDE: Mapping[str, object] = {"log.cleaner.min.files": 2, "log.cleaner.backoff.ms": 1}
_ROUNDS, _WARM_UP_SENDS = 2, 5
_DATA = DataSet(1_000, 1_000)
PARTITIONS, RECORDS = 4, 5
LEADING, FOLLOWING = 1, 2
_SAMPLES = 25
_FILES_A_COMMIT = 50
OnStep = Callable[[str, int], None]
_BROKERS = {"leader": LEADING, "follower": FOLLOWING}


@dataclass
class SendsBeside:
    """Sends without and beside compaction; the number of compactions, of which the first kind must have none; and
    whether the committed records were those that were sent."""

    without: Sends = field(default_factory=lambda: Sends("without compaction", _DATA))
    beside: Sends = field(default_factory=lambda: Sends("beside compaction", _DATA))
    compactions: int = 0
    rows_equal: bool = True


def sends_of(sends: int) -> int:
    """The number of all sends if so many of each kind are measured."""
    return 2 * _ROUNDS * (_WARM_UP_SENDS + sends // _ROUNDS)


def measure_sends_beside_compaction(
    spark: SparkSession, folder: Path, sends: int, on_step: Callable[[str, int], None]
) -> SendsBeside:
    """Sends 1 MB with acks=all, over and over, to two pairs of clusters. Brokers of the second of each pair compact any
    two files of a size, without a pause."""
    found, warm_up = SendsBeside(), Sends("warm-up", _DATA)
    for number in range(_ROUNDS):
        for configs, kind in ((_WITHOUT, found.without), (_BESIDE, found.beside)):
            home = folder / f"{number} {kind.name}"
            home.mkdir(parents=True)
            with LocalCluster(spark, str(home / "lakelog"), BROKERS, configs) as cluster:
                cluster.admin().create_topic(TOPIC, SENT_TO, BROKERS)
                run = ProduceRun(home, Producer(cluster.cluster_uri, acks="all"), lambda: on_step("sends", 1))
                for each in [warm_up] * _WARM_UP_SENDS + [kind] * (sends // _ROUNDS):
                    run.send(each, run.table(_DATA))
                found.rows_equal &= run.are_committed(spark, cluster)
                found.compactions += sum(_compactions(cluster.broker_uri(b)) for b in range(1, BROKERS + 1))
    return found


def _compactions(broker: str) -> int:
    """The compactions among the commits of a broker's log that are still there."""
    log = StorageRoot.of(broker).child(LOG.name)
    count = 0
    for version in range(last_version(log), -1, -1):
        try:
            count += read_commit(log, version).info.get("why") == "compact"
        except FileNotFoundError:
            break
    return count


@dataclass
class Measured:
    """The results. Times are in seconds. `at_start` and `at_end` have the times of a tenth of the commits each, 500 at
    most. `held_most`: the most files of one partition and size class after the compaction."""

    files_before: int = 0
    files_after: int = 0
    held_most: int = 0
    compaction_seconds: float = 0.0
    rows_equal: bool = True
    commits: int = 0
    at_start: Mapping[str, list[float]] = field(default_factory=dict)
    at_end: Mapping[str, list[float]] = field(default_factory=dict)
    log_files: Mapping[str, int] = field(default_factory=dict)
    data_files: Mapping[str, int] = field(default_factory=dict)
    sends: SendsBeside = field(default_factory=SendsBeside)


def measure_maintenance(spark: SparkSession, files: int, commits: int, sends: int) -> Measured:
    """Runs all measurements in a folder that is deleted afterwards. Shows a progress bar on stderr."""
    measured = Measured(commits=commits)
    with bench_folder() as folder, counting_bar() as progress:
        task = progress.add_task("small files", total=files + commits + sends_of(sends))

        def on_step(words: str, done: int) -> None:
            progress.update(task, advance=done, description=words)

        measure_compaction(folder / "alone", files, measured, on_step)
        _commits(spark, folder / "cluster", commits, measured, on_step)
        measured.sends = measure_sends_beside_compaction(spark, folder, sends, on_step)
        measured.rows_equal &= measured.sends.rows_equal
    return measured


def measure_compaction(folder: Path, files: int, measured: Measured, on_step: OnStep) -> None:
    """Compacts a log of small files as a broker does, and compares its rows with those before."""
    log = ReplicaLog.create(StorageRoot.of(str(folder)))
    partitions = [TopicIdPartition("bench-id", number) for number in range(PARTITIONS)]
    log.become(dict.fromkeys(partitions, Role(0, LEADER)), "bench")
    commits = SmallCommits(log, partitions, RECORDS)
    for _ in range(files // _FILES_A_COMMIT):
        commits.make(_FILES_A_COMMIT)
        on_step("small files", _FILES_A_COMMIT)
    reader, before = ReplicaLog.open(log.root), content(log, partitions)
    reader_files = len(log.current().segments)
    config, started = Config(), time.perf_counter()
    limits = config.log_segment_bytes, config.log_cleaner_min_files, config.log_cleaner_max_bytes
    while compact(log, *limits, "bench"):
        pass
    measured.compaction_seconds = time.perf_counter() - started
    measured.files_before, measured.files_after = reader_files, len(log.current().segments)
    held = Counter(
        (header.topic_id_partition, size_class(segment.file.size, config.log_segment_bytes))
        for segment in log.current().segments.values()
        for header in {h.partition: h for h in segment.headers}.values()
    )
    measured.held_most = max(held.values())
    after = [content(each, partitions) for each in (log, reader, ReplicaLog.open(log.root))]
    measured.rows_equal &= after == [before] * 3


def content(log: ReplicaLog, partitions: list[TopicIdPartition]) -> list[tuple[pa.Table, list[object]]]:
    """The rows of each partition (columns of `schemas.LOG`), and the headers of its batches."""
    state = log.refresh()
    return [(log.read(p, 0), [batch.header for batch in state.partition(p).batches]) for p in partitions]


def _commits(spark: SparkSession, folder: Path, commits: int, measured: Measured, on_step: OnStep) -> None:
    """Commits to a leader that has a follower. Both maintain their logs with default settings."""
    with LocalCluster(spark, str(folder), brokers=2) as cluster:
        assignment = dict.fromkeys(range(PARTITIONS), (LEADING, FOLLOWING))
        topic = cluster.admin().create_topic("bench", assignment=assignment)
        roots = {name: StorageRoot.of(cluster.broker_uri(b)).child(LOG.name) for name, b in _BROKERS.items()}
        log = ReplicaLog.open(roots["leader"])
        partitions = [r.topic_id_partition for r in topic.partitions]
        wait_until(lambda: log.refresh().partition(partitions[-1]).role.is_leader, "the leader leads", 60, 0.05)
        run = _Run(SmallCommits(log, partitions, RECORDS), ReplicaLog.open(roots["follower"]))
        part = min(500, commits // 10)
        run.warm_up()
        measured.at_start = run.sample(part, on_step)
        for _ in range(commits - 2 * part):
            run.commits.make()
            on_step("commits", 1)
        measured.at_end = run.sample(part, on_step)
        run.wait_for_follower()
        measured.log_files = {name: len(root.child("_delta_log").list()) for name, root in roots.items()}
        frames = [spark.read.format("delta").load(root.spark_uri) for root in roots.values()]
        one, other = (tuple(checksum(frame).collect()[0]) for frame in frames)
        measured.rows_equal &= one == other and one[0] == run.commits.records
        measured.data_files = {name: len(ReplicaLog.open(root).current().segments) for name, root in roots.items()}


class _Run:
    """Commits to a leader's log, and measures the time until the follower's log has them."""

    def __init__(self, commits: SmallCommits, follower: ReplicaLog) -> None:
        self.commits = commits
        self._follower = follower

    def warm_up(self) -> None:
        """Waits until the follower's query has started, which takes seconds."""
        for _ in range(_SAMPLES):
            self.commits.make()
            self.wait_for_follower()

    def wait_for_follower(self) -> float:
        """Waits until the follower has all records. Returns the seconds that it took."""
        started, pause = time.perf_counter(), threading.Event()
        ends, deadline = self.commits.ends(), time.monotonic() + 120
        while {p: self._follower.refresh().partition(p).log_end_offset for p in ends} != ends:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the follower has not reached {ends}, version {last_version(self._follower.root)}")
            pause.wait(0.002)
        return time.perf_counter() - started

    def sample(self, count: int, on_step: OnStep) -> dict[str, list[float]]:
        """The seconds of `count` commits. About 25 times it also measures how long the follower takes: a
        micro-batch."""
        seconds: dict[str, list[float]] = {"commit": [], "micro-batch": []}
        for number in range(count):
            seconds["commit"].append(self.commits.make())
            on_step("commits, measured", 1)
            if number % max(1, count // _SAMPLES) == 0:
                self.wait_for_follower()  # for the commits before the measured one
                self.commits.make()
                seconds["micro-batch"].append(self.wait_for_follower())
        return seconds


def maintenance_figures(found: Measured) -> dict[str, object]:
    """All figures. If rows differ, the times mean nothing and are left out."""
    about = {"files": found.files_before, "commits": found.commits, **circumstances()}
    if not found.rows_equal:
        return {"rows_equal": False, **about}
    return {
        "rows_equal": True,
        "files_after_compaction": found.files_after,
        "most_files_of_a_partition_and_size_class": found.held_most,
        "compaction_seconds": round(found.compaction_seconds, 2),
        "end_vs_start": {name: _ratio(found, name) for name in found.at_start},
        "median_ms_at_start": {name: _ms(seconds) for name, seconds in found.at_start.items()},
        "median_ms_at_end": {name: _ms(seconds) for name, seconds in found.at_end.items()},
        "files_in_delta_log": dict(found.log_files),
        "data_files": dict(found.data_files),
        "sends": {
            "median_ms_without_compaction": _ms(found.sends.without.seconds),
            "median_ms_beside_compaction": _ms(found.sends.beside.seconds),
            "beside_vs_without": _send_ratio(found),
            "compactions": found.sends.compactions,
        },
        **about,
    }


def _ratio(found: Measured, name: str) -> float:
    return round(median(found.at_end[name]) / median(found.at_start[name]), 2)


def _send_ratio(found: Measured) -> float:
    return round(median(found.sends.beside.seconds) / median(found.sends.without.seconds), 2)


def _ms(seconds: list[float]) -> float:
    return round(median(seconds) * 1000, 1)


def maintenance_rows(found: Measured) -> list[Row]:
    """One row a figure."""
    rows: list[Row] = [
        {"figure": "small files compacted", "at_start": found.files_before, "at_end": found.files_after, "ratio": ""},
        {"figure": "seconds that took", "at_start": "", "at_end": round(found.compaction_seconds, 1), "ratio": ""},
    ]
    for name in found.at_start:
        at_start, at_end = _ms(found.at_start[name]), _ms(found.at_end[name])
        rows.append(
            {"figure": f"{name}, median ms", "at_start": at_start, "at_end": at_end, "ratio": _ratio(found, name)}
        )
    for name, count in found.log_files.items():
        rows.append({"figure": f"files in _delta_log, {name}", "at_start": "", "at_end": count, "ratio": ""})
    for name, count in found.data_files.items():
        rows.append({"figure": f"data files, {name}", "at_start": "", "at_end": count, "ratio": ""})
    sends = found.sends
    without, beside = _ms(sends.without.seconds), _ms(sends.beside.seconds)
    name = f"send without compaction, beside {sends.compactions}"
    rows.append({"figure": name, "at_start": without, "at_end": beside, "ratio": _send_ratio(found)})
    return rows
