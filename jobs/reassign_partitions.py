"""`lakelog reassign-partitions`: moves partitions to other brokers, with the flags of kafka-reassign-partitions.sh.

--generate proposes, --execute begins, --verify tells how far it has come, --cancel goes back, --list shows what moves.
"""

import argparse

from lakelog.jobs.admin.reassign_command import ACTIONS, broker_list
from lakelog.jobs.admin.reassignment_throttle import throttle
from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.options import add_actions, add_dry_run, admin_client, admin_parser, check_options
from lakelog.jobs.cli.partition_files import read_reassignments, read_topics

_FILES = """
The file of reassignments: {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]};
that of topics to move: {"version": 1, "topics": [{"topic": "t"}]}.
"""
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
    parser = _parser()
    return run(parser, lambda args: _reassign(parser, args), argv)


def _parser() -> argparse.ArgumentParser:
    parser = admin_parser("reassign-partitions", __doc__)
    parser.epilog = _FILES
    add_actions(parser, ACTIONS)
    parser.add_argument(
        "--reassignment-json-file", type=read_reassignments, metavar="FILE", help="brokers of partitions"
    )
    parser.add_argument("--topics-to-move-json-file", type=read_topics, metavar="FILE", help="for --generate: topics")
    parser.add_argument("--broker-list", type=broker_list, metavar="1,2,3", help="for --generate: where they may go")
    parser.add_argument("--disable-rack-aware", action="store_true", help="for --generate: take no notice of racks")
    parser.add_argument("--throttle", type=throttle, metavar="BYTES", help="for --execute: bytes a second, a broker")
    parser.add_argument("--preserve-throttles", action="store_true", help="for --verify: leave throttles as they are")
    add_dry_run(parser)
    return parser


def _reassign(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    check_options(parser, args, _GOES_WITH, _NEEDS)
    return ACTIONS[args.action](admin_client(args, "reassign-partitions"), args)
