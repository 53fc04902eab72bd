"""`lakelog leader-election`: elects leaders by hand. The flags are those of kafka-leader-election.sh. [PE-01, LE-02]

preferred: the first of the assignment leads again, if it is in sync. unclean: where nobody leads, a replica out of sync
may; records may be lost.
"""

import argparse

from lakelog.jobs.admin.election_command import say_elected
from lakelog.jobs.cli.console import run, show
from lakelog.jobs.cli.options import TEXT, add_dry_run, admin_client, admin_parser
from lakelog.jobs.cli.outcomes import outcome_rows
from lakelog.jobs.cli.partition_files import read_partitions
from lakelog.replication.controller.leader_election import ELECTION_TYPES


def main(argv: list[str]) -> int:
    """The verb."""
    parser = _parser()
    return run(parser, lambda args: _elect(parser, args), argv)


def _parser() -> argparse.ArgumentParser:
    parser = admin_parser("leader-election", __doc__)
    parser.add_argument("--election-type", required=True, type=str.lower, choices=ELECTION_TYPES)
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--topic", metavar="NAME", help="with --partition")
    whose.add_argument(
        "--path-to-json-file",
        type=read_partitions,
        metavar="FILE",
        help='{"partitions": [{"topic": "t", "partition": 0}]}',
    )
    whose.add_argument("--all-topic-partitions", action="store_true")
    parser.add_argument("--partition", type=int, metavar="N", help="of --topic")
    add_dry_run(parser)
    return parser


def _elect(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if (args.topic is None) != (args.partition is None):
        parser.error("--topic and --partition go together")
    chosen = [(args.topic, args.partition)] if args.topic is not None else args.path_to_json_file
    admin = admin_client(args, "leader-election")
    outcomes = admin.elect_leaders(args.election_type, chosen, validate_only=args.dry_run)
    if args.output != TEXT:
        show(outcome_rows("partition", outcomes, args.dry_run), args.output)
    return say_elected(outcomes, args)
