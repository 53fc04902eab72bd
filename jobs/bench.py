"""`lakelog bench`: measures Lakelog against its peers in the same run, and compares rows before times."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from jobs.benchmark.replication import QUICK, Plan
from jobs.benchmark.report import figures, rows
from jobs.benchmark.run import measure
from jobs.console import FAILED, OK, parser_of, run, say, show
from jobs.session import spark_session


def main(argv: list[str]) -> int:
    """The verb."""
    return run(_parser(), _run, argv)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("bench", __doc__)
    parser.add_argument("what", choices=["replication"], help="a follower against a plain Delta-to-Delta stream")
    parser.add_argument("--out", metavar="FILE", type=Path, help="write all figures there, as JSON")
    parser.add_argument("--rounds", metavar="N", type=_rounds, default=5, help="default: 5")
    parser.add_argument("--quick", action="store_true", help="one round of few records: shows that it works, no more")
    return parser


def _rounds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rounds: it is 1 or more")
    return int(text)


def _run(args: argparse.Namespace) -> int:
    spark = spark_session("lakelog bench")
    try:
        results = measure(spark, QUICK if args.quick else replace(Plan(), rounds=args.rounds))
    finally:
        spark.stop()
    found = figures(results)
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")
    if not found["rows_equal"]:
        say(f"lakelog: a follower does not have the rows of the leader: {found['rows_differ_in']}")
        return FAILED
    show(rows(results))
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
