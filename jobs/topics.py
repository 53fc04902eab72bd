"""`lakelog topics`: creates, lists, describes, alters or deletes topics. The flags are those of kafka-topics.sh."""

import argparse

from lakelog.jobs.admin.topic_command import ACTIONS, FILTERS, assignment, config_pair
from lakelog.jobs.cli.console import add_all, run
from lakelog.jobs.cli.options import add_actions, add_dry_run, admin_client, admin_parser, check_options

_GOES_WITH = {
    "topic": ("create", "describe", "alter", "delete"),
    "all": ("describe",),
    "partitions": ("create", "alter"),
    "replica_assignment": ("create", "alter"),
    "replication_factor": ("create",),
    "config": ("create",),
    "if_not_exists": ("create",),
    "if_exists": ("describe", "alter", "delete"),
    "dry_run": ("create", "alter", "delete"),
    **dict.fromkeys(FILTERS, ("describe",)),
}
_NEEDS = {"create": ["topic"], "alter": ["topic", "partitions"], "delete": ["topic"]}


def main(argv: list[str]) -> int:
    """The verb."""
    parser = _parser()
    return run(parser, lambda args: _topics(parser, args), argv)


def _parser() -> argparse.ArgumentParser:
    parser = admin_parser("topics", __doc__)
    add_actions(parser, ACTIONS)
    add_all(parser)
    parser.add_argument("--topic", metavar="NAME", help="the topic; --describe without it describes all")
    parser.add_argument("--if-exists", action="store_true", help="a topic that there is not is no error")
    only = parser.add_argument_group("with --describe").add_mutually_exclusive_group()
    for name, (words, _) in FILTERS.items():
        only.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=f"only partitions {words}")
    _add_change_arguments(
        parser.add_argument_group("with --create; the first two also with --alter, the last with every change")
    )
    return parser


def _add_change_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--partitions", type=int, metavar="N", help="default: num.partitions; --alter can only add some")
    group.add_argument(
        "--replica-assignment", type=assignment, metavar="1:2:3,2:3:1",
        help="brokers of every partition, leader first; --alter passes over those that it has already",
    )  # fmt: skip
    group.add_argument("--replication-factor", type=int, metavar="N", help="default: default.replication.factor")
    group.add_argument("--config", type=config_pair, action="append", metavar="KEY=VALUE", help="setting of the topic")
    group.add_argument("--if-not-exists", action="store_true", help="a topic that exists is left as it is: no error")
    add_dry_run(group)


def _topics(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    check_options(parser, args, _GOES_WITH, _NEEDS)
    return ACTIONS[args.action](admin_client(args, "topics"), args)
