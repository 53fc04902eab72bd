"""`lakelog bench`: measures Lakelog against its peers in the same run, and compares rows before times."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jobs.benchmark.data import DataSet
from jobs.benchmark.replication import Bench, Plan
from jobs.benchmark.report import figures, rows
from jobs.console import FAILED, OK, parser_of, run, say, show
from jobs.session import spark_session

_QUICK = Plan(1, (DataSet(20_000, 100), DataSet(4_000, 1000)), 2)


def main(argv: list[str]) -> int:
    """The verb."""
    return run(_parser(), _run, argv)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("bench", __doc__)
    parser.add_argument("what", choices=["replication"], help="a follower against a plain Delta-to-Delta stream")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write all figures there, as JSON")
    parser.add_argument("--rounds", metavar="N", type=int, choices=range(1, 1000), default=5, help="default: 5")
    parser.add_argument("--quick", action="store_true", help="one round of few records: shows that it works, no more")
    return parser


def _run(args: argparse.Namespace) -> int:
    plan = _QUICK if args.quick else Plan(args.rounds)
    spark = spark_session("lakelog bench")
    try:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("", total=plan.steps + 1)
            bench = Bench(spark, plan, lambda words: progress.update(task, advance=1, description=words))
            throughput = [bench.throughput(data_set) for data_set in plan.data_sets]
            latency = bench.latency()
    finally:
        spark.stop()
    found = figures(throughput, latency, plan.rounds)
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")
    if not found["rows_equal"]:
        say(f"lakelog: the followers do not have the same rows as the leader: {found['rows_differ_in']}")
        return FAILED
    show(rows(throughput, latency))
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
