"""The commands of `lakelog bench`: each writes its figures to a file and shows them, or says what is wrong."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import SparkSession

from lakelog.jobs.cli.console import FAILED, OK, Row, say, show
from lakelog.jobs.launch.session import job_session
from lakelog.verification.bench.controller import controller_figures, controller_rows, measure_controller
from lakelog.verification.bench.idle import idle_figures, idle_rows, measure_idle
from lakelog.verification.bench.maintenance import maintenance_figures, maintenance_rows, measure_maintenance
from lakelog.verification.bench.processes import measure_processes, processes_figures, processes_rows
from lakelog.verification.bench.produce import QUICK as QUICK_SENDS
from lakelog.verification.bench.produce import ProducePlan, measure_produce, produce_figures, produce_rows
from lakelog.verification.bench.read import QUICK_READ, ReadPlan, measure_read, read_figures, read_rows
from lakelog.verification.bench.replication import QUICK, Plan, figures, measure, rows
from lakelog.verification.bench.requests import RequestsPlan, measure_requests, requests_figures, requests_rows
from lakelog.verification.bench.scale import QUICK_SCALE, ScalePlan, measure_scale, scale_figures, scale_tables
from lakelog.verification.bench.suites import run_suites, suites_figures, suites_rows
from lakelog.verification.bench.workers import measure_workers, workers_figures, workers_plan, workers_rows


def replication(args: argparse.Namespace) -> int:
    """Measures a follower against a plain stream, or with several numbers of workers. Returns the exit status."""
    differ = "a follower does not have the rows of its leader"
    if args.workers:
        catch_ups = measure_workers(workers_plan(args.workers, args.quick))
        wrong = None if catch_ups.rows_equal else differ
        return _report(args, workers_figures(catch_ups), workers_rows(catch_ups), wrong=wrong)
    with _session() as spark:
        results = measure(spark, QUICK if args.quick else replace(Plan(), rounds=args.rounds, seconds=args.seconds))
    for reduction in results.reductions:
        say(f"lakelog: measured {reduction}")
    found = figures(results)
    wrong = None if found["rows_equal"] else f"{differ}: {found.get('rows_differ_in')}"
    return _report(args, found, rows(results), wrong=wrong)


def produce(args: argparse.Namespace) -> int:
    """Measures acknowledged sends. Returns the exit status."""
    with _session() as spark:
        found = measure_produce(spark, QUICK_SENDS if args.quick else replace(ProducePlan(), rounds=args.rounds))
    differ = "the committed records are not the records that were sent"
    return _report(args, produce_figures(found), produce_rows(found), wrong=None if found.rows_equal else differ)


def read(args: argparse.Namespace) -> int:
    """Measures reads of a topic. Returns the exit status."""
    with _session() as spark:
        found = measure_read(spark, QUICK_READ if args.quick else replace(ReadPlan(), rounds=args.rounds))
    differ = "a read does not have the rows of the plain table"
    return _report(args, read_figures(found), read_rows(found), wrong=None if found.rows_equal else differ)


def idle(args: argparse.Namespace) -> int:
    """Measures a cluster that does nothing. Returns the exit status."""
    with _session() as spark:
        found = measure_idle(spark, args.seconds)
    return _report(args, idle_figures(found), idle_rows(found))


def processes(args: argparse.Namespace) -> int:
    """Measures a cluster of processes. Returns the exit status."""
    found = measure_processes(args.sends, args.seconds)
    differ = "the committed records are not the records that were sent"
    return _report(args, processes_figures(found), processes_rows(found), wrong=None if found.rows_equal else differ)


def requests(args: argparse.Namespace) -> int:
    """Counts the requests of clusters in an object store. Returns the exit status."""
    interval = args.poll_interval_ms
    configs = {} if interval is None else {"lakelog.poll.interval.ms": interval}
    plan = RequestsPlan(
        args.brokers, args.partitions, args.controllers, args.seconds, args.sends, configs, args.latencies
    )
    with _session() as spark:
        found = measure_requests(spark, plan)
    differ = "the committed records are not the records that were sent"
    wrong = None if all(each.rows_equal for each in found) else differ
    return _report(args, requests_figures(found), requests_rows(found), wrong=wrong)


def controller(args: argparse.Namespace) -> int:
    """Measures the controller alone. Returns the exit status."""
    steps = measure_controller(args.partitions, args.brokers)
    found = controller_figures(steps, args.partitions, args.brokers)
    wrong = f"the controller decided wrongly: {found.get('wrong')}"
    return _report(args, found, controller_rows(steps), wrong=None if found["outcome_is_right"] else wrong)


def maintenance(args: argparse.Namespace) -> int:
    """Measures maintenance of a log: compaction, and the time of commits over thousands of them. Returns the exit
    status."""
    with _session() as spark:
        found = measure_maintenance(spark, args.files, args.commits, args.sends)
    differ = "a log does not have its earlier rows, or the rows of its leader"
    return _report(
        args, maintenance_figures(found), maintenance_rows(found), wrong=None if found.rows_equal else differ
    )


def scale(args: argparse.Namespace) -> int:
    """Measures how times grow. Returns the exit status."""
    found = measure_scale(QUICK_SCALE if args.quick else ScalePlan().up_to(args.most))
    return _report(args, scale_figures(found), *scale_tables(found))


def all_suites(args: argparse.Namespace) -> int:
    """Runs all benchmarks. Returns the exit status: 1 if one has failed."""
    found = run_suites(args.only, args.quick, say)
    status = _report(args, suites_figures(found), suites_rows(found))
    return FAILED if any(suite.error for suite in found) else status


COMMANDS = {
    "all": all_suites,
    "replication": replication,
    "produce": produce,
    "read": read,
    "idle": idle,
    "processes": processes,
    "requests": requests,
    "controller": controller,
    "maintenance": maintenance,
    "scale": scale,
}


@contextmanager
def _session() -> Iterator[SparkSession]:
    spark = job_session("lakelog bench")
    try:
        yield spark
    finally:
        spark.stop()


def _report(
    args: argparse.Namespace, found: Mapping[str, object], *tables: Sequence[Row], wrong: str | None = None
) -> int:  # fmt: skip
    """Writes the figures to the file, and shows them unless something is wrong: then the times mean nothing."""
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")
    if wrong is not None:
        say(f"lakelog: {wrong}")
        return FAILED
    for number, table in enumerate(tables):
        if number:
            print()
        show(table)
    return OK
