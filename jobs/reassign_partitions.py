"""Moves partitions to other brokers. The flags are those of kafka-reassign-partitions.sh.

A file of reassignments: {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}. A file of
topics: {"version": 1, "topics": [{"topic": "t"}]}.
"""

import argparse

from lakelog.jobs.admin.reassign_command import ACTIONS, HELP, broker_list
from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.options import add_actions, add_dry_run, admin_client, admin_parser, check_options
from lakelog.jobs.cli.partition_files import read_reassignments, read_topics
from lakelog.jobs.cli.verb_parser import VerbParser

_FILE = ["reassignment_json_file"]
_GOES_WITH = {
    "reassignment_json_file": ("execute", "verify", "cancel"),
    "topics_to_move_json_file": ("generate",),
    "broker_list": ("generate",),
    "disable_rack_aware": ("generate",),
    "throttle": ("execute",),
    "preserve_throttles": ("verify",),
    "dry_run": ("execute", "cancel"),
}
_NEEDS = {
    "generate": ["topics_to_move_json_file", "broker_list"], "execute": _FILE, "verify": _FILE, "cancel": _FILE,
}  # fmt: skip


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _reassign(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("reassign-partitions", __doc__)
    add_actions(parser, HELP)
    files = (("--reassignment-json-file", read_reassignments, "for --execute, --verify and --cancel: reassignments"),
             ("--topics-to-move-json-file", read_topics, "for --generate: topics"))  # fmt: skip
    for name, read, words in files:
        parser.add_argument(name, type=read, metavar="FILE", help=words)
    parser.add_argument("--broker-list", type=broker_list, metavar="1,2", help="for --generate: the brokers to use")
    parser.add_argument("--disable-rack-aware", action="store_true", help="for --generate: ignore racks")
    parser.add_argument(
        "--throttle", type=whole_number(1, MAX_OFFSET), metavar="BYTES", help="for --execute: bytes a second per broker"
    )
    parser.add_argument("--preserve-throttles", action="store_true", help="for --verify: keep the throttles")
    add_dry_run(parser)
    return parser


def _reassign(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    check_options(parser, args, _GOES_WITH, _NEEDS)
    return ACTIONS[args.action](admin_client(args, "reassign-partitions"), args)
