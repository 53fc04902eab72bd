"""`lakelog bench`: measures Lakelog, against its peers in the same run where it has any; outcomes come before times."""

import sys

from jobs.benchmark.arguments import parser
from jobs.benchmark.commands import COMMANDS
from jobs.console import run


def main(argv: list[str]) -> int:
    """The verb."""
    return run(parser(__doc__), lambda args: COMMANDS[args.what](args), argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
