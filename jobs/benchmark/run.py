"""Runs all measurements of a plan, with a progress bar on stderr."""

from __future__ import annotations

from pyspark.sql import SparkSession

from lakelog.jobs.benchmark.replication import Bench, Plan
from lakelog.jobs.benchmark.report import Results
from lakelog.jobs.cli.progress import counting_bar


def measure(spark: SparkSession, plan: Plan) -> Results:
    """Runs the plan."""
    with counting_bar() as progress:
        task = progress.add_task("measuring", total=plan.steps)
        bench = Bench(spark, plan, lambda done: progress.update(task, advance=1, description=done))
        return Results(plan.rounds, [bench.throughput(data_set) for data_set in plan.data_sets], bench.latency())
