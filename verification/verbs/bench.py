"""Measures Lakelog, next to other programs where there are any. It compares records before it shows times."""

import argparse
import sys

from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.verification.bench.commands import parser


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), _bench, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    return parser(__doc__)


def _bench(args: argparse.Namespace) -> int:
    from lakelog.verification.bench.commands import COMMANDS  # the arguments need no Spark

    return COMMANDS[args.what](args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
