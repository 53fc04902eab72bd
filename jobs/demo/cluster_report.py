"""Reports on one topic from a cluster's tables: as a table for people, as figures for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

from lakelog.jobs.cli.numbers import with_commas
from lakelog.replication.clients.reader import read_committed, segment_ranges, segment_records
from lakelog.replication.clients.topic_view import TopicView
from lakelog.replication.frames.record_checks import differing_partitions, partition_checksums
from lakelog.replication.protocol.partition_registration import PartitionRegistration
from lakelog.replication.storage.cluster import Cluster


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
    """Reads the tables of a cluster for one topic."""

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
        rows = {broker: self._view.replicas(broker).get(key) for broker in registration.replicas}
        log = self._view.log(registration.leader).refresh().partition(key)
        leader = rows[registration.leader]
        return PartitionReport(
            registration.partition, registration.leader, registration.isr, registration.replicas, log.log_end_offset,
            leader.high_watermark if leader else 0, len({batch.segment for batch in log.batches}),
            {broker: row.log_end_offset if row else 0 for broker, row in rows.items()},
        )  # fmt: skip

    def is_settled(self) -> bool:
        """Whether every replica is in sync, every LEO equals its leader's, and every high watermark equals its LEO.

        It reads leaders and ISRs again first.
        """
        self._registrations = self._view.partitions(self._topic)
        return all(
            report.high_watermark == report.log_end_offset
            and set(report.isr) == set(report.replicas)
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
        bounds = {key: (found.log_start_offset, found.log_end_offset) for key, found in logs.items()}
        return segment_records(self._spark, log.root, segment_ranges(state, bounds))

    def records_in_leader_logs(self) -> int:
        """The number of records in the leaders' logs, committed or not."""
        led: dict[int, list[int]] = {}
        for registration in self._registrations.values():
            led.setdefault(registration.leader, []).append(registration.partition)
        return sum(self._log(leader).where(F.col("partition").isin(numbers)).count() for leader, numbers in led.items())

    def replicas_identical(self) -> bool:
        """Whether the logs of all brokers have the same records of each partition, by a join of checksums."""
        brokers = sorted({broker for r in self._registrations.values() for broker in r.replicas})
        sums = {broker: partition_checksums(self._log(broker)).cache() for broker in brokers}
        hosted = {
            broker: [r.partition for r in self._registrations.values() if broker in r.replicas] for broker in brokers
        }
        first = brokers[0]
        return all(
            _is_empty(_differences(sums[first], sums[broker], sorted({*hosted[first]} & {*hosted[broker]})))
            for broker in brokers[1:]
        )

    def lost_and_duplicated(self, sent: DataFrame) -> tuple[int, int]:
        """The number of sent records that are not committed, and of committed records beyond those sent.

        `sent` has the columns `key` and `value`, which together identify a record.
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


def _differences(one: DataFrame, other: DataFrame, partitions: list[int]) -> DataFrame:
    chosen = F.col("partition").isin(partitions)
    return differing_partitions(one.where(chosen), other.where(chosen))


def _is_empty(frame: DataFrame) -> bool:
    return frame.limit(1).count() == 0


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


def as_figures(reports: list[PartitionReport]) -> list[dict[str, object]]:
    """The partitions as objects for JSON."""
    return [asdict(report) for report in reports]


def rows_table(frame: DataFrame, title: str, limit: int = 10) -> Table:
    """The first rows of a query as a table."""
    table = Table(title=title)
    for name in frame.columns:
        table.add_column(name)
    return reduce(_with_row, frame.limit(limit).collect(), table)


def _with_row(table: Table, row: object) -> Table:
    table.add_row(*(str(value) for value in row))  # type: ignore[attr-defined]
    return table
