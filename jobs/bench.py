"""`lakelog bench`: measures Lakelog, against its peers in the same run where it has any; outcomes come before times."""

import sys

from lakelog.jobs.benchmark.arguments import parser
from lakelog.jobs.benchmark.commands import COMMANDS
from lakelog.jobs.cli.console import run


def main(argv: list[str]) -> int:
    """The verb."""
    return run(parser(__doc__), lambda args: COMMANDS[args.what](args), argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
