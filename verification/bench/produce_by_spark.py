"""The part of `bench produce` that Spark does: sends of Spark's DataFrames, and micro-batches of the streaming sink."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from lakelog.verification.bench.micro_batches import micro_batches, running
from lakelog.verification.bench.produce_run import FRAME, SINK, TOPIC, ProducePlan, ProduceRun, Sends

_SCHEMA = "key BINARY, value BINARY"


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
