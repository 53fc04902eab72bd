"""`lakelog bench`: measures Lakelog, against its peers in the same run where it has any; outcomes come before times."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace

from jobs.benchmark.arguments import parser
from jobs.benchmark.controller import measure_controller
from jobs.benchmark.controller_report import controller_figures, controller_rows
from jobs.benchmark.replication import QUICK, Plan
from jobs.benchmark.report import figures, rows
from jobs.benchmark.run import measure
from jobs.console import FAILED, OK, run, say, show
from jobs.session import spark_session


def main(argv: list[str]) -> int:
    """The verb."""
    return run(
        parser(__doc__), lambda args: _controller(args) if args.what == "controller" else _replication(args), argv
    )


def _replication(args: argparse.Namespace) -> int:
    spark = spark_session("lakelog bench")
    try:
        results = measure(spark, QUICK if args.quick else replace(Plan(), rounds=args.rounds))
    finally:
        spark.stop()
    found = figures(results)
    _keep(args, found)
    if not found["rows_equal"]:
        say(f"lakelog: a follower does not have the rows of the leader: {found['rows_differ_in']}")
        return FAILED
    show(rows(results))
    return OK


def _controller(args: argparse.Namespace) -> int:
    steps = measure_controller(args.partitions, args.brokers)
    found = controller_figures(steps, args.partitions, args.brokers)
    _keep(args, found)
    if not found["outcome_is_right"]:
        say(f"lakelog: the controller has decided wrongly: {found['wrong']}")
        return FAILED
    show(controller_rows(steps))
    return OK


def _keep(args: argparse.Namespace, found: Mapping[str, object]) -> None:
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
