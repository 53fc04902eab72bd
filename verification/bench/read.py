"""`bench read`: reads a topic by each way there is, beside a plain Delta table with the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakelog.jobs.cli.console import Row
from lakelog.jobs.cli.progress import counting_bar
from lakelog.replication.clients.consumer import Consumer
from lakelog.replication.clients.producer import Producer, raise_first_error
from lakelog.replication.clients.reader import read_committed
from lakelog.replication.local_cluster import LocalCluster
from lakelog.verification.bench.measuring import DataSet, bench_folder, micro_batches, running
from lakelog.verification.bench.replication import circumstances, summary

TOPIC, STREAMED, PARTITIONS, BROKERS = "bench", "streamed", 12, 3
PLAIN, COMMITTED, SOURCE, TAIL = "plain Delta", "read_committed", 'format("lakelog")', "read_committed, tail"
PLAIN_STREAM, STREAM, CONSUMER = "plain Delta stream", 'stream of format("lakelog")', "Consumer"
_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")  # those of the source
_TIMEOUT_MS = 120_000
_MILLION, _THOUSAND = DataSet(1_000_000, 100), DataSet(1_000, 100)
_PEERS = {COMMITTED: PLAIN, SOURCE: PLAIN, STREAM: PLAIN_STREAM}


@dataclass(frozen=True)
class ReadPlan:
    """The records and the rounds. The first rounds warm up and are not counted: the JVM compiles what runs often."""

    rounds: int = 5
    warm_up_rounds: int = 3
    sends: int = 3
    each: DataSet = _MILLION
    tail: int = 10_000  # records of each partition
    batch: DataSet = _THOUSAND  # of a micro-batch

    @property
    def steps(self) -> int:
        """The number of measured steps and of those that warm up."""
        return self.sends + (self.rounds + self.warm_up_rounds) * 7 + 2


# Checks that the benchmark works. Its figures mean nothing.
QUICK_READ = ReadPlan(1, 1, 1, DataSet(5_000, 100), 10, DataSet(100, 100))


@dataclass
class Reads:
    """The seconds of each way of reading, by round. `megabytes`: keys and values of the topic, in 10^6 bytes."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    records: int = 0
    megabytes: float = 0.0
    rows_equal: bool = False


def measure_read(spark: SparkSession, plan: ReadPlan) -> Reads:
    """Runs the plan in a temporary folder, with a progress bar on stderr."""
    with bench_folder() as folder, LocalCluster(spark, str(folder / "lakelog"), BROKERS) as cluster:
        for topic in (TOPIC, STREAMED):
            cluster.admin().create_topic(topic, PARTITIONS, BROKERS)
        with counting_bar() as progress:
            task = progress.add_task("reading", total=plan.steps)
            return _ReadRun(spark, plan, cluster.cluster_uri, folder, lambda: progress.advance(task)).run()


class _ReadRun:
    def __init__(
        self, spark: SparkSession, plan: ReadPlan, cluster: str, folder: Path, on_step: Callable[[], None]
    ) -> None:  # fmt: skip
        self._spark, self._plan, self._cluster, self._folder, self._on_step = spark, plan, cluster, folder, on_step
        self._producer = Producer(cluster)
        self._found = Reads()
        self._ends: dict[int, int] = {}

    def run(self) -> Reads:
        for number in range(self._plan.sends):
            self._send(TOPIC, self._plan.each.table(number))
            self._on_step()
        self._committed().write.format("delta").save(str(self._folder / "plain"))
        self._ends = self._read_ends()
        self._found.rows_equal = self._are_equal()
        tail = {n: max(0, end - self._plan.tail) for n, end in self._ends.items()}
        ways: dict[str, Callable[[], None]] = {
            PLAIN: lambda: _discard(self._plain()),
            COMMITTED: lambda: _discard(self._committed()),
            SOURCE: lambda: _discard(self._source()),
            TAIL: lambda: _discard(self._committed(tail)),
            CONSUMER: self._consume,
        }
        for round_number in range(1 - self._plan.warm_up_rounds, self._plan.rounds + 1):
            for name, read in ways.items():
                self._time(name, read, is_counted=round_number > 0)
        self._streams()
        return self._found

    def _send(self, topic: str, records: pa.Table) -> None:
        raise_first_error(self._producer.send(topic, records, timeout_ms=_TIMEOUT_MS))

    def _plain(self) -> DataFrame:
        return self._spark.read.format("delta").load(str(self._folder / "plain"))

    def _committed(self, starting: Mapping[int, int] | str = "earliest") -> DataFrame:
        return read_committed(self._spark, self._cluster, TOPIC, starting).select(*_COLUMNS)

    def _source(self) -> DataFrame:
        return self._spark.read.format("lakelog").options(cluster=self._cluster, subscribe=TOPIC).load()

    def _are_equal(self) -> bool:
        """Whether each way gives the rows of the plain table, and the topic has all that was sent."""
        sums = [_sum(records) for records in (self._plain(), self._committed(), self._source())]
        self._found.records = self._plan.sends * self._plan.each.records
        consumed = sum(table.num_rows for table in self._tables())
        return sums == [sums[0]] * 3 and sums[0][0] == self._found.records == consumed

    def _read_ends(self) -> dict[int, int]:
        ends = self._committed().groupBy("partition").agg({"offset": "max"}).collect()
        return {row["partition"]: row["max(offset)"] + 1 for row in ends}

    def _tables(self) -> Iterator[pa.Table]:
        """The whole topic, fetched by a consumer as it comes."""
        consumer, offsets = Consumer(self._cluster), dict.fromkeys(range(PARTITIONS), 0)
        while offsets:
            for number, fetched in consumer.fetch(TOPIC, offsets).items():
                if fetched.error is not None:
                    raise fetched.error
                offsets[number] = fetched.next_offset
                yield fetched.records
            offsets = {number: offset for number, offset in offsets.items() if offset < self._ends.get(number, 0)}

    def _consume(self) -> None:
        self._found.megabytes = sum(_bytes(table) for table in self._tables()) / 1e6

    def _time(self, name: str, read: Callable[[], None], is_counted: bool) -> None:
        started = time.perf_counter()
        read()
        seconds = time.perf_counter() - started
        if is_counted:
            self._found.seconds.setdefault(name, []).append(seconds)
        self._on_step()

    def _streams(self) -> None:
        """Micro-batches of a few records: the time from the trigger to its end, as Spark measures it.

        A send is committed on one broker after the other. The query waits for all its records, as the plain table gets
        them in one commit. A query does not wait for its first records, so one is sent before.
        """
        plain = str(self._folder / "plain-stream")
        self._spark.createDataFrame([], "key binary, value binary").write.format("delta").save(plain)
        ours = self._spark.readStream.format("lakelog").options(cluster=self._cluster, subscribe=STREAMED)
        ours = ours.option("minOffsetsPerTrigger", self._plan.batch.records)
        sources = {PLAIN_STREAM: self._spark.readStream.format("delta").load(plain), STREAM: ours.load()}
        for name, records in sources.items():
            checkpoint = str(self._folder / f"checkpoint-{len(self._found.seconds)}")
            with running(records.writeStream.format("noop").option("checkpointLocation", checkpoint)) as query:
                query.processAllAvailable()
                seen: set[int] = set()
                first = -self._plan.warm_up_rounds
                for round_number in range(first, self._plan.rounds + 1):
                    table = self._plan.batch.table(round_number - first)
                    table = table if round_number > first else table.slice(0, 1)
                    if name == STREAM:
                        self._send(STREAMED, table)
                    else:
                        self._spark.createDataFrame(table).write.format("delta").mode("append").save(plain)
                    seconds, count = micro_batches(query, seen)
                    self._found.rows_equal &= count == table.num_rows
                    if round_number > 0:
                        self._found.seconds.setdefault(name, []).append(seconds)
                    self._on_step()


def _discard(records: DataFrame) -> None:
    records.write.format("noop").mode("overwrite").save()


def _sum(records: DataFrame) -> tuple[int, int]:
    """The number of rows, and a checksum of them that has no order."""
    row = records.selectExpr("count(*)", f"bit_xor(xxhash64({', '.join(_COLUMNS)}))").collect()[0]
    return row[0], row[1]


def _bytes(table: pa.Table) -> int:
    return table.select(["key", "value"]).nbytes


def read_figures(found: Reads) -> dict[str, object]:
    """All figures. If rows differ, the times mean nothing and are left out."""
    if not found.rows_equal:
        return {"rows_equal": False, **circumstances()}
    return {
        "rows_equal": True,
        "records": found.records,
        "read_vs_plain_delta": _ratio(found, COMMITTED),
        "tail_s": round(median(found.seconds[TAIL]), 3),
        "source_batch_vs_plain_delta": _ratio(found, SOURCE),
        "source_stream_vs_plain_stream": _ratio(found, STREAM),
        "consumer_mb_per_s": _mb_per_s(found),
        "seconds": {name: summary(seconds) for name, seconds in found.seconds.items()},
        **circumstances(),
    }


def _ratio(found: Reads, name: str) -> float:
    return round(median(found.seconds[name]) / median(found.seconds[_PEERS[name]]), 2)


def _mb_per_s(found: Reads) -> float:
    return round(found.megabytes / median(found.seconds[CONSUMER]), 1)


def read_rows(found: Reads) -> list[Row]:
    """One row for each way of reading; `times_plain`: its time by that of the plain read or stream."""
    return [
        {
            "read": name,
            "median_ms": round(median(seconds) * 1000),
            "times_plain": str(_ratio(found, name)) if name in _PEERS else "",
            "mb_per_s": str(_mb_per_s(found)) if name == CONSUMER else "",
        }
        for name, seconds in found.seconds.items()
    ]
