"""Runs all measurements of a plan, with a progress bar on stderr."""

from __future__ import annotations

from pyspark.sql import SparkSession

from lakelog.jobs.cli.progress import counting_bar
from lakelog.verification.bench.folder import bench_folder
from lakelog.verification.bench.memory import write_speed
from lakelog.verification.bench.replication import Bench, Plan
from lakelog.verification.bench.report import Results


def measure(spark: SparkSession, plan: Plan) -> Results:
    """Runs the plan, with smaller commits if the disk is slow."""
    with bench_folder() as folder:
        speed = write_speed(folder)
    with counting_bar() as progress:
        task = progress.add_task("measuring", total=plan.steps)
        bench = Bench(spark, plan.on_disk(speed), lambda done: progress.update(task, advance=1, description=done))
        *throughput, latency = bench.run()
    return Results(plan, speed, throughput, latency)
