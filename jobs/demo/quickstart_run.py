"""The quickstart: starts three brokers, produces real records, kills a leader half way, and checks every record."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console

from lakelog.jobs.cli.progress import counting_bar
from lakelog.jobs.demo.cluster_report import ClusterReport, as_figures, partition_table, rows_table
from lakelog.jobs.demo.flights import flights
from lakelog.jobs.demo.root_names import DISK, owners, root_name
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.config import Owner
from lakelog.replication.local_cluster import LocalCluster

TOPIC = "flights"
PARTITIONS = 12
BROKERS = 3
CONFIGS = {"min.insync.replicas": 2, "retention.ms": -1}  # the flights are years old: retention would delete them
BATCH = 20_000
FIRST_AFTER_THE_KILL = 500  # a small batch with records for every partition, which measures the failover time
_SETTLE_SECONDS = 60
_KEPT = {"disk": "", "s3": " Its S3 servers have ended, so no command can open it."}

TOP_TEN = "SELECT CAST(key AS STRING) AS tail_number, count(*) AS flights FROM committed WHERE key IS NOT NULL \
GROUP BY key ORDER BY flights DESC, tail_number LIMIT 10"


def quickstart(
    spark: SparkSession, out: str | None, keep: Path | None, limit: int | None, store: str = "disk"
) -> int:  # fmt: skip
    """Runs the quickstart in the folder `keep`, or in a temporary one. `store`: see `add_store`. Returns 0 if every
    record is in its place, else 1."""
    folder = Path(keep or tempfile.mkdtemp(prefix="lakelog-"))
    try:
        with _roots(folder, store) as uris:
            status = _run(spark, uris, folder, out, limit)
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


def _run(
    spark: SparkSession, uris: Mapping[Owner, str], folder: Path, out: str | None, limit: int | None
) -> int:  # fmt: skip
    console, started = Console(), time.monotonic()
    records = flights().slice(0, limit)
    with LocalCluster(spark, str(folder), BROKERS, roots=dict(uris)) as cluster:
        cluster.admin().create_topic(TOPIC, PARTITIONS, 3, configs=CONFIGS)
        report = ClusterReport(spark, cluster.cluster_uri, TOPIC)
        failover_ms = _produce_over_a_failure(cluster, report, records)
        _settle(report)
        figures = {**_figures(spark, report, records), "failover_ms": failover_ms}
    figures["elapsed_s"] = round(time.monotonic() - started, 1)
    _show(spark, console, report, figures)
    if out:
        Path(out).write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if _is_sound(figures) else 1


def _produce_over_a_failure(cluster: LocalCluster, report: ClusterReport, records: pa.Table) -> int:
    """Produces one half, kills the leader of most partitions, produces the rest, and starts the broker again.

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
        victim = report.leader_of_most_partitions()
        cluster.kill_broker(victim)
        killed_at = time.monotonic()
        progress.update(task, description=f"broker {victim} was killed")
        produce(records.slice(half, FIRST_AFTER_THE_KILL))
        failover_ms = round((time.monotonic() - killed_at) * 1000)
        progress.update(task, description="other brokers lead, acks=all")
        produce(records.slice(half + FIRST_AFTER_THE_KILL))
    cluster.start_broker(victim)
    return failover_ms


def _settle(report: ClusterReport) -> None:
    """Waits until the restarted broker has caught up and all followers have the last high watermark."""
    pause, deadline = threading.Event(), time.monotonic() + _SETTLE_SECONDS
    while not report.is_settled() and time.monotonic() < deadline:
        pause.wait(0.1)


def _figures(spark: SparkSession, report: ClusterReport, records: pa.Table) -> dict[str, object]:
    """All figures, from the tables; the sent records are only compared with the committed ones."""
    with tempfile.TemporaryDirectory(prefix="lakelog-sent-") as folder:  # as local data, Spark warns of its tasks' size
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
        "partitions": as_figures(report.partitions()),
    }


def _show(spark: SparkSession, console: Console, report: ClusterReport, figures: dict[str, object]) -> None:
    console.print(partition_table(TOPIC, report.partitions()))
    report.committed().createOrReplaceTempView("committed")
    console.print(rows_table(spark.sql(TOP_TEN), "Most flights"))
    for name, value in figures.items():
        if name != "partitions":
            console.print(f"{name:20} {value:,}" if isinstance(value, int) and value > 1 else f"{name:20} {value}")


def _is_sound(figures: dict[str, object]) -> bool:
    same = {figures[name] for name in ("records_sent", "records_produced", "records_committed")}
    nothing = figures["records_lost"] == figures["records_duplicated"] == 0
    return len(same) == 1 and nothing and figures["replicas_identical"] is True
