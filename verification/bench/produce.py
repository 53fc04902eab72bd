"""`bench produce`: sends records with acks=all to three brokers, and appends the same to a plain Delta table."""

from __future__ import annotations

from pyspark.sql import SparkSession

from lakelog.jobs.cli.progress import counting_bar
from lakelog.replication.clients.producer import Producer
from lakelog.replication.local_cluster import LocalCluster
from lakelog.verification.bench.folder import bench_folder
from lakelog.verification.bench.produce_by_spark import SparkSends
from lakelog.verification.bench.produce_run import BROKERS, PARTITIONS, TOPIC, Produced, ProducePlan, ProduceRun


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
