"""`bench produce`: sends records with acks=all to three brokers, and appends the same to a plain Delta table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.progress import counting_bar
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.clients.reader import read_committed
from lakelog.replication.local_cluster import LocalCluster
from lakelog.verification.bench.measuring import DataSet, bench_folder, cpu_seconds, micro_batches, running
from lakelog.verification.bench.replication import checksum, circumstances, summary

TOPIC, PARTITIONS, BROKERS = "bench", 12, 3
_TIMEOUT_MS = 120_000
_TWENTY_MB, _TWO_HUNDRED_MB = DataSet(20_000, 1000), DataSet(200_000, 1000)
FIRST, SMALL, IN_A_ROW, IN_FLIGHT = "first send", "small sends", "sends in a row", "sends in flight"
LARGE, FRAME, SINK = "large sends", "DataFrames", "streaming sink"
_SCHEMA = "key BINARY, value BINARY"


def measure_produce(spark: SparkSession, plan: ProducePlan) -> Produced:
    """Runs the plan in a temporary folder, with a progress bar on stderr."""
    with bench_folder() as folder, LocalCluster(spark, str(folder / "lakelog"), BROKERS) as cluster:
        cluster.admin().create_topic(TOPIC, PARTITIONS, BROKERS)
        with counting_bar() as progress:
            task = progress.add_task("sending", total=plan.steps)
            run = ProduceRun(folder, Producer(cluster.cluster_uri, acks="all"), lambda: progress.advance(task))
            found = Produced([run.first(), run.in_a_row(plan), run.in_flight(plan)])
            found.sends.insert(1, run.small(plan))  # those before have warmed up the brokers' JVM, as in a long life
            found.sends += [run.large(plan, each) for each in plan.large]
            by_spark = SparkSends(spark, cluster.cluster_uri, folder, run)
            found.sends += [by_spark.frames(plan), by_spark.micro_batches(plan)]
        found.rows_equal = run.are_committed(spark, cluster)
        return found


@dataclass(frozen=True)
class ProducePlan:
    """The sends and their numbers. One large send of each kind, some small ones, and one round of sends in flight
    warm up and are not counted. `by_spark`: the records of a DataFrame, and of a micro-batch of the sink."""

    rounds: int = 5
    large: tuple[DataSet, ...] = (DataSet(1_000_000, 100), _TWO_HUNDRED_MB)
    by_spark: DataSet = _TWO_HUNDRED_MB
    in_a_row: DataSet = _TWENTY_MB
    sends_in_a_row: int = 10
    small_sends: int = 40  # of one record a partition
    warm_up_sends: int = 5

    @property
    def steps(self) -> int:
        """The number of sends."""
        large = (self.rounds + 1) * (len(self.large) + 2)
        in_flight = (self.rounds + 1) * self.sends_in_a_row
        return 1 + self.warm_up_sends + self.small_sends + self.sends_in_a_row + in_flight + large


# Checks that the benchmark works. Its figures mean nothing.
QUICK = ProducePlan(
    1, (DataSet(5_000, 100), DataSet(1_000, 1000)), DataSet(1_000, 1000), DataSet(500, 1000), 2, 2, 1
)  # fmt: skip


@dataclass
class Sends:
    """Sends of one kind: the seconds of each until it was acknowledged, and of the append to the plain table.

    `core_seconds`: the CPU time of all small sends together, in seconds: client, brokers, controller. It is not
    measured for large sends, and 0 there.
    """

    name: str
    data_set: DataSet
    seconds: list[float] = field(default_factory=list)
    plain_seconds: list[float] = field(default_factory=list)
    core_seconds: float = 0.0


@dataclass
class Produced:
    """All measured sends, and whether the committed records are those that were sent."""

    sends: list[Sends] = field(default_factory=list)
    rows_equal: bool = False


class ProduceRun:
    """Sends records. It keeps each table that was sent as a file, to compare it with the committed records."""

    def __init__(self, folder: Path, producer: Producer, on_step: Callable[[], None]) -> None:
        self.sent = folder / "sent"
        self.sent.mkdir()
        self._plain = str(folder / "plain")
        self._producer = producer
        self.on_step = on_step
        self._count = 0

    def first(self) -> Sends:
        """The first send of a new topic."""
        return self._of_one_record_each(FIRST, 1)

    def small(self, plan: ProducePlan) -> Sends:
        """Sends of one record a partition."""
        self._of_one_record_each("warm-up", plan.warm_up_sends)
        return self._of_one_record_each(SMALL, plan.small_sends)

    def _of_one_record_each(self, name: str, count: int) -> Sends:
        sends = Sends(name, DataSet(PARTITIONS, 100))
        tables = [self.table(sends.data_set) for _ in range(count)]
        before = cpu_seconds()
        for table in tables:
            self.send(sends, table)
        sends.core_seconds = cpu_seconds() - before
        for table in tables:
            self._append_plainly(sends, table)
        return sends

    def in_a_row(self, plan: ProducePlan) -> Sends:
        """Large sends, each begun when the one before it is acknowledged."""
        sends = Sends(IN_A_ROW, plan.in_a_row)
        tables = [self.table(sends.data_set) for _ in range(plan.sends_in_a_row)]
        for table in tables:
            self.send(sends, table)
        for table in tables:
            self._append_plainly(sends, table)
        return sends

    def in_flight(self, plan: ProducePlan) -> Sends:
        """The same sends, five in flight. The time of a send is that of its round by the number of sends."""
        sends, warm_up = Sends(IN_FLIGHT, plan.in_a_row), Sends("warm-up", plan.in_a_row)
        for each in [warm_up, *[sends] * plan.rounds]:
            tables = [self.table(each.data_set) for _ in range(plan.sends_in_a_row)]
            started = time.perf_counter()
            futures = [self._producer.send_async(TOPIC, table, timeout_ms=_TIMEOUT_MS) for table in tables]
            for future in futures:
                raise_first_error(future.result())
                self.on_step()
            each.seconds.append((time.perf_counter() - started) / len(tables))
            plain = Sends("plain", plan.in_a_row)
            for table in tables:
                self._append_plainly(plain, table)
            each.plain_seconds.append(sum(plain.plain_seconds) / len(tables))
        return sends

    def large(self, plan: ProducePlan, data_set: DataSet) -> Sends:
        """One send a round, beside the plain append of the same records."""
        sends, warm_up = Sends(LARGE, data_set), Sends("warm-up", data_set)
        for each in [warm_up, *[sends] * plan.rounds]:
            self._append_plainly(each, self._lakelog(each))
        return sends

    def _lakelog(self, sends: Sends) -> pa.Table:
        table = self.table(sends.data_set)
        self.send(sends, table)
        return table

    def are_committed(self, spark: SparkSession, cluster: LocalCluster) -> bool:
        """Whether the committed records are those of all tables."""
        committed = read_committed(spark, cluster.cluster_uri, TOPIC).select("key", "value")
        one, other = (checksum(each).collect() for each in (committed, spark.read.parquet(str(self.sent))))
        return one == other

    def table(self, data_set: DataSet) -> pa.Table:
        """The next records to send."""
        self._count += 1
        table = data_set.table(self._count)
        pq.write_table(table, self._file)
        return table

    def next_file(self, data_set: DataSet) -> Path:
        """The next records to send, as a Parquet file."""
        self.table(data_set)
        return self._file

    @property
    def _file(self) -> Path:
        return self.sent / f"{self._count}.parquet"

    def send(self, sends: Sends, table: pa.Table | DataFrame) -> None:
        """One acknowledged send."""
        if isinstance(table, pa.Table) and table.num_rows == PARTITIONS:
            table = table.append_column("partition", pa.array(range(PARTITIONS), pa.int32()))
        started = time.perf_counter()
        raise_first_error(self._producer.send(TOPIC, table, timeout_ms=_TIMEOUT_MS))
        sends.seconds.append(time.perf_counter() - started)
        self.on_step()

    def _append_plainly(self, sends: Sends, table: pa.Table) -> None:
        started = time.perf_counter()
        write_deltalake(self._plain, table, mode="append")
        sends.plain_seconds.append(time.perf_counter() - started)


class SparkSends:
    """Sends the next records of a run from Parquet files, beside plain appends by Spark of the same rows."""

    def __init__(self, spark: SparkSession, cluster_uri: str, folder: Path, run: ProduceRun) -> None:
        self._spark, self._cluster, self._folder, self._run = spark, cluster_uri, folder, run

    def frames(self, plan: ProducePlan) -> Sends:
        """Sends of one DataFrame each."""
        sends, warm_up = Sends(FRAME, plan.by_spark), Sends("warm-up", plan.by_spark)
        for each in [warm_up, *[sends] * plan.rounds]:
            rows = self._spark.read.schema(_SCHEMA).parquet(str(self._run.next_file(plan.by_spark)))
            self._run.send(each, rows)
            started = time.perf_counter()
            rows.write.format("delta").mode("append").save(str(self._folder / "plain-frames"))
            each.plain_seconds.append(time.perf_counter() - started)
        return sends

    def micro_batches(self, plan: ProducePlan) -> Sends:
        """Micro-batches of two queries that read the same files: one writes to the topic, one to a plain table."""
        sends = Sends(SINK, plan.by_spark)
        streamed = self._folder / "streamed"
        streamed.mkdir()
        rows = self._spark.readStream.schema(_SCHEMA).parquet(str(streamed))
        ours = self._writer(rows, "lakelog").options(cluster=self._cluster, topic=TOPIC)
        plain = self._writer(rows, "delta").option("path", str(self._folder / "plain-stream"))
        with running(ours) as query, running(plain) as plain_query:
            seen: tuple[set[int], set[int]] = (set(), set())
            for number in range(plan.rounds + 1):
                (streamed / f"{number}.parquet").hardlink_to(self._run.next_file(plan.by_spark))
                one, other = micro_batches(query, seen[0]), micro_batches(plain_query, seen[1])
                if number:
                    sends.seconds.append(one[0])
                    sends.plain_seconds.append(other[0])
                self._run.on_step()
        return sends

    def _writer(self, rows: DataFrame, name: str) -> DataStreamWriter:
        return rows.writeStream.format(name).option("checkpointLocation", str(self._folder / f"checkpoint-{name}"))


def produce_figures(found: Produced) -> dict[str, object]:
    """All figures. If rows differ, the times mean nothing and are left out."""
    if not found.rows_equal:
        return {"rows_equal": False, **circumstances()}
    named = {sends.name: sends for sends in found.sends}
    large = [sends for sends in found.sends if sends.name == LARGE]
    return {
        "rows_equal": True,
        "first_send_ms": _ms(named[FIRST].seconds),
        "small_send_ms": _ms(named[SMALL].seconds),
        "small_send_core_seconds": round(named[SMALL].core_seconds / len(named[SMALL].seconds), 3),
        "in_a_row_mb_per_s": _mb_per_s(named[IN_A_ROW]),
        "in_flight_mb_per_s": _mb_per_s(named[IN_FLIGHT]),
        **{f"arrow_mb_per_s_{_size(sends)}": _mb_per_s(sends) for sends in large},
        **{f"arrow_records_per_s_{_size(sends)}": _records_per_s(sends) for sends in large},
        f"frame_mb_per_s_{_size(named[FRAME])}": _mb_per_s(named[FRAME]),
        f"sink_mb_per_s_{_size(named[SINK])}": _mb_per_s(named[SINK]),
        "sends": [_figures(sends) for sends in found.sends],
        **circumstances(),
    }


def _figures(sends: Sends) -> dict[str, object]:
    return {
        "name": sends.name,
        "data_set": sends.data_set.name,
        "seconds": summary(sends.seconds),
        "plain_append_seconds": summary(sends.plain_seconds),
    }


def _size(sends: Sends) -> str:
    size = sends.data_set.value_bytes
    return f"{size // 1000}kb" if size >= 1000 else f"{size}b"


def _ms(seconds: list[float]) -> float:
    return round(median(seconds) * 1000, 1)


def _records_per_s(sends: Sends) -> int:
    return round(sends.data_set.records / median(sends.seconds))


def _mb_per_s(sends: Sends) -> float:
    return round(_records_per_s(sends) * sends.data_set.value_bytes / 1e6, 1)


def produce_rows(found: Produced) -> list[Row]:
    """One row for each kind of send; `plain_ms` is the time of the plain append, which writes one copy."""
    return [
        {
            "sent": sends.name,
            "each": sends.data_set.name,
            "median_ms": round(median(sends.seconds) * 1000),
            "mb_per_s": _mb_per_s(sends),
            "plain_ms": round(median(sends.plain_seconds) * 1000),
        }
        for sends in found.sends
    ]
