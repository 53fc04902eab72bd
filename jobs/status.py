"""Shows the health of a cluster on one screen: controller, brokers, partitions, lag, problems.

The exit status is for monitors: 0 if nothing is wrong, 1 if something is, 2 for wrong usage. Notes do not change it.
They name partitions at min ISR, reassignments and throttles: read them before you stop a broker. It only reads tables,
so that it answers without a controller too. If a broker or the controller looks dead, it looks again 3 seconds later.
If they have other session time-outs than the defaults, give these in the --command-config file.
"""

from lakelog.jobs.admin.status_command import status
from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.options import FORMS, admin_parser
from lakelog.jobs.cli.verb_parser import VerbParser


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), status, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    return admin_parser("status", __doc__, FORMS)
