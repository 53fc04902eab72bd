"""Lists and describes consumer groups, resets their offsets, or deletes them. The flags are those of
kafka-consumer-groups.sh.

A reset and a deletion are refused while a consumer that has subscribed is a member of the group. They need no
controller.
"""

import argparse

from lakelog.jobs.admin.group_arguments import GOES_WITH, NEEDS, add_group_arguments, check_scope
from lakelog.jobs.admin.group_command import ACTIONS
from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.options import admin_parser, check_options
from lakelog.jobs.cli.verb_parser import VerbParser


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _consumer_groups(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("consumer-groups", __doc__)
    add_group_arguments(parser)
    return parser


def _consumer_groups(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    check_options(parser, args, GOES_WITH, NEEDS)
    check_scope(parser, args)
    return ACTIONS[args.action](args)
