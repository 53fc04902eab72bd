"""Creates, lists, describes, alters or deletes topics. The flags are those of kafka-topics.sh."""

import argparse

from lakelog.jobs.admin.topic_arguments import add_topic_arguments
from lakelog.jobs.admin.topic_command import ACTIONS, FILTERS, check_once
from lakelog.jobs.cli.console import add_all, run
from lakelog.jobs.cli.options import admin_client, admin_parser, check_options
from lakelog.jobs.cli.verb_parser import VerbParser

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
    parser = make_parser()
    return run(parser, lambda args: _topics(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("topics", __doc__)
    add_topic_arguments(parser)
    add_all(parser)
    return parser


def _topics(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    check_options(parser, args, _GOES_WITH, _NEEDS)
    try:
        check_once(key for key, _ in args.config or ())
    except argparse.ArgumentTypeError as error:
        parser.error(f"--config: {error}")
    if args.action == "create" and args.replica_assignment:
        _check_assignment(parser, args)
    return ACTIONS[args.action](admin_client(args, "topics"), args)


def _check_assignment(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """An assignment says how many partitions and replicas there are."""
    for name in ("partitions", "replication_factor"):
        if getattr(args, name) is not None:
            parser.error(f"--{name.replace('_', '-')} does not go with --replica-assignment, which says it")
    if len(set(map(len, args.replica_assignment.values()))) > 1:
        text = ",".join(":".join(map(str, brokers)) for brokers in args.replica_assignment.values())
        parser.error(f"--replica-assignment: {text!r} gives partitions different numbers of replicas")
