"""Elects leaders by hand. The flags are those of kafka-leader-election.sh.

A preferred election gives a partition back to the first broker of its assignment, if that is in sync. An unclean
election lets an out-of-sync replica lead a partition without a leader, and may lose records. Before it, and with
--dry-run, the command says which broker leads then, and how many committed records are lost.
"""

import argparse

from lakelog.jobs.admin.loss_warnings import say_what_unclean_elections_lose
from lakelog.jobs.cli.console import FAILED, OK, Report, run, say
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import MakeClient, add_dry_run, admin_client, admin_parser
from lakelog.jobs.cli.outcomes import outcome_rows, say_refused
from lakelog.jobs.cli.partition_files import read_partitions
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.replication.clients.admin import Outcomes
from lakelog.replication.controller.requested_elections import ELECTION_TYPES, UNCLEAN
from lakelog.replication.errors import ElectionNotNeededException
from lakelog.replication.storage.cluster import Cluster


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: carry_out(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("leader-election", __doc__)
    parser.add_argument("--election-type", required=True, type=str.lower, choices=ELECTION_TYPES, help="see above")
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--topic", metavar="NAME", help="name of the topic; goes with --partition")
    whose.add_argument(
        "--path-to-json-file",
        type=read_partitions,
        metavar="FILE",
        help='JSON, such as {"partitions": [{"topic": "t", "partition": 0}]}',
    )
    whose.add_argument("--all-topic-partitions", action="store_true", help="every partition of every topic")
    parser.add_argument("--partition", type=whole_number(0), metavar="N", help="number of the partition of --topic")
    add_dry_run(parser)
    return parser


def carry_out(parser: argparse.ArgumentParser, args: argparse.Namespace, client: MakeClient = admin_client) -> int:
    """Does what the arguments ask for, and returns the status. `client` makes the client of requests."""
    if (args.topic is None) != (args.partition is None):
        parser.error("--topic and --partition go together")
    chosen = [(args.topic, args.partition)] if args.topic is not None else args.path_to_json_file
    if args.election_type == UNCLEAN:
        names = None if chosen is None else {f"{topic}-{number}" for topic, number in chosen}
        say_what_unclean_elections_lose(Cluster.open(args.cluster, settings(args.command_config)), names)
    admin = client(args, "leader-election")
    outcomes = admin.elect_leaders(args.election_type, chosen, validate_only=args.dry_run)
    Report(outcome_rows("partition", outcomes, args.dry_run), text=()).show(args.output)
    return say_elected(outcomes, args)


def say_elected(outcomes: Outcomes, args: argparse.Namespace) -> int:
    """The status, with Kafka's sentences: FAILED if any was refused. It is no failure if a partition needs no
    election."""
    done = [name for name, outcome in outcomes.items() if outcome.error is None]
    needless = [name for name, outcome in outcomes.items() if outcome.error == ElectionNotNeededException.__name__]
    refused = {name: outcome for name, outcome in outcomes.items() if name not in (*done, *needless)}
    if done:
        begin = "Nothing was written. Would complete" if args.dry_run else "Successfully completed"
        say(f"{begin} leader election ({args.election_type.upper()}) for partitions {', '.join(done)}")
    if needless:
        say(f"Valid replica already elected for partitions {', '.join(needless)}")
    if not outcomes:
        say("No partition needs an election")
    for name, outcome in refused.items():
        say_refused(name, outcome)
    return FAILED if refused else OK
