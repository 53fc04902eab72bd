"""`lakelog topics`: creates, lists or describes topics. The flags are those of kafka-topics.sh."""

import argparse

from jobs.console import JSON, OK, TABLE, parser_of, run
from jobs.settings import settings
from jobs.topic_command import ACTIONS, TEXT, assignment, config_pair
from replication.clients.admin import AdminClient

_FOR_CREATE = ("partitions", "replication_factor", "replica_assignment", "config", "if_not_exists", "dry_run")


def main(argv: list[str]) -> int:
    """The verb."""
    parser = _parser()
    return run(parser, lambda args: _topics(parser, args), argv)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("topics", __doc__)
    parser.add_argument("--cluster", required=True, metavar="URI", help="root of the cluster")
    action = parser.add_mutually_exclusive_group(required=True)
    for name in ACTIONS:
        action.add_argument(f"--{name}", dest="action", action="store_const", const=name)
    parser.add_argument("--topic", metavar="NAME", help="the topic; --describe without it describes all")
    parser.add_argument("-o", "--output", choices=(TEXT, TABLE, JSON), default=TEXT, help="text is as Kafka has it")
    parser.add_argument("--command-config", metavar="FILE", help="properties file with the credentials of the roots")
    _add_create_arguments(parser.add_argument_group("with --create"))
    return parser


def _add_create_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--partitions", type=int, metavar="N", help="default: num.partitions")
    group.add_argument("--replication-factor", type=int, metavar="N", help="default: default.replication.factor")
    group.add_argument(
        "--replica-assignment", type=assignment, metavar="1:2:3,2:3:1", help="brokers of each partition, leader first"
    )
    group.add_argument("--config", type=config_pair, action="append", metavar="KEY=VALUE", help="setting of the topic")
    group.add_argument("--if-not-exists", action="store_true", help="a topic that exists is left as it is: no error")
    group.add_argument("--dry-run", action="store_true", help="show what would be made, write nothing")


def _topics(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.action == "create" and not args.topic:
        parser.error("--create needs --topic")
    given = [name for name in _FOR_CREATE if getattr(args, name) != parser.get_default(name)]
    if args.action != "create" and given:
        parser.error(f"--{given[0].replace('_', '-')} goes with --create only")
    if args.action == "list" and args.topic:
        parser.error("--list lists all topics; --describe --topic describes one")
    ACTIONS[args.action](AdminClient(args.cluster, settings(args.command_config)), args)
    return OK
