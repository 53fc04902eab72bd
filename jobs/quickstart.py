"""`quickstart`: 336,776 real records over three brokers, and every one of them checked."""

from __future__ import annotations

import argparse
import sys

from lakelog.jobs.cli.empty_folder import empty_folder
from lakelog.jobs.demo.quickstart_run import quickstart
from lakelog.jobs.launch.session import spark_session


def main(argv: list[str]) -> int:
    """Runs the quickstart; exit status 1 if a record is lost, doubled, or not the same on every replica."""
    parser = argparse.ArgumentParser(prog="lakelog quickstart", description=__doc__)
    parser.add_argument("--out", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--keep", type=empty_folder, metavar="DIR", help="leave the cluster in this empty folder")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N flights")
    arguments = parser.parse_args(argv)
    spark = spark_session("lakelog-quickstart")
    try:
        return quickstart(spark, arguments.out, arguments.keep, arguments.limit)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
