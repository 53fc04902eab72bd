"""Replicates 336,776 flights over three brokers, kills a leader half way, and checks that every record arrived once."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.empty_folder import empty_folder
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.out_file import out_file
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of
from lakelog.jobs.cli.waiting import exit_when_told
from lakelog.jobs.demo.root_names import S3, add_store
from lakelog.jobs.launch.installed import check_checkout


def main(argv: list[str]) -> int:
    """Runs the quickstart; exit status 1 if a record is lost, doubled, or not the same on every replica."""
    exit_when_told()
    parser = make_parser()
    return run(parser, partial(_quickstart, parser), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("quickstart", __doc__)
    add_store(parser)
    parser.add_argument("--out", type=out_file, metavar="FILE", help="write the figures to this file, as JSON")
    parser.add_argument("--keep", type=empty_folder, metavar="DIR", help="leave the cluster in this empty folder")
    parser.add_argument(
        "--limit", type=whole_number(1), metavar="N", help="send only the first N flights; default: all"
    )
    return parser


def _quickstart(parser: VerbParser, arguments: argparse.Namespace) -> int:
    if arguments.store == S3:
        try:
            check_checkout(f"--store {S3}")
        except ValueError as error:
            parser.error(str(error))
    from lakelog.jobs.demo.quickstart_run import quickstart  # the arguments need no Spark
    from lakelog.jobs.launch.session import job_session

    spark = job_session("lakelog-quickstart")
    try:
        out = arguments.out and str(arguments.out)
        return quickstart(spark, out, arguments.keep, arguments.limit, arguments.store)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
