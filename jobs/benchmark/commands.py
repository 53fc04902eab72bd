"""The commands of `lakelog bench`: each writes its figures to a file and shows them, or says what is wrong."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace

from lakelog.jobs.benchmark.controller import measure_controller
from lakelog.jobs.benchmark.controller_report import controller_figures, controller_rows
from lakelog.jobs.benchmark.idle import idle_figures, idle_rows, measure_idle
from lakelog.jobs.benchmark.maintenance import measure_maintenance
from lakelog.jobs.benchmark.maintenance_report import maintenance_figures, maintenance_rows
from lakelog.jobs.benchmark.produce import QUICK as QUICK_SENDS
from lakelog.jobs.benchmark.produce import ProducePlan, measure_produce
from lakelog.jobs.benchmark.produce_report import produce_figures, produce_rows
from lakelog.jobs.benchmark.replication import QUICK, Plan
from lakelog.jobs.benchmark.report import figures, rows
from lakelog.jobs.benchmark.run import measure
from lakelog.jobs.cli.console import FAILED, OK, say, show
from lakelog.jobs.launch.session import job_session


def replication(args: argparse.Namespace) -> int:
    """Measures a follower against a plain stream. Returns the exit status."""
    spark = job_session("lakelog bench")
    try:
        results = measure(spark, QUICK if args.quick else replace(Plan(), rounds=args.rounds))
    finally:
        spark.stop()
    found = figures(results)
    _keep(args, found)
    if not found["rows_equal"]:
        say(f"lakelog: a follower does not have the rows of its leader: {found['rows_differ_in']}")
        return FAILED
    show(rows(results))
    return OK


def controller(args: argparse.Namespace) -> int:
    """Measures the controller alone. Returns the exit status."""
    steps = measure_controller(args.partitions, args.brokers)
    found = controller_figures(steps, args.partitions, args.brokers)
    _keep(args, found)
    if not found["outcome_is_right"]:
        say(f"lakelog: the controller decided wrongly: {found['wrong']}")
        return FAILED
    show(controller_rows(steps))
    return OK


def maintenance(args: argparse.Namespace) -> int:
    """Measures maintenance of a log: compaction, and the time of commits over thousands of them. Returns the exit
    status."""
    spark = job_session("lakelog bench")
    try:
        found = measure_maintenance(spark, args.files, args.commits)
    finally:
        spark.stop()
    shown = maintenance_figures(found)
    _keep(args, shown)
    if not shown["rows_equal"]:
        say("lakelog: a log does not have its earlier rows, or the rows of its leader")
        return FAILED
    show(maintenance_rows(found))
    return OK


def produce(args: argparse.Namespace) -> int:
    """Measures acknowledged sends. Returns the exit status."""
    spark = job_session("lakelog bench")
    try:
        found = measure_produce(spark, QUICK_SENDS if args.quick else replace(ProducePlan(), rounds=args.rounds))
    finally:
        spark.stop()
    _keep(args, produce_figures(found))
    if not found.rows_equal:
        say("lakelog: the committed records are not the records that were sent")
        return FAILED
    show(produce_rows(found))
    return OK


def idle(args: argparse.Namespace) -> int:
    """Measures a cluster that does nothing. Returns the exit status."""
    spark = job_session("lakelog bench")
    try:
        found = measure_idle(spark, args.seconds)
    finally:
        spark.stop()
    _keep(args, idle_figures(found))
    show(idle_rows(found))
    return OK


COMMANDS = {
    "replication": replication,
    "produce": produce,
    "idle": idle,
    "controller": controller,
    "maintenance": maintenance,
}


def _keep(args: argparse.Namespace, found: Mapping[str, object]) -> None:
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")
