"""The arguments of `lakelog topics`."""

import argparse

from lakelog.jobs.admin.topic_command import FILTERS, assignment, config_pair
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.options import add_actions, add_dry_run

_HELP = {
    "create": "create a topic",
    "list": "list the names of all topics",
    "describe": "show topics and their partitions",
    "alter": "add partitions to a topic",
    "delete": "delete a topic and its records",
}


def add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions, the topic, and the options of each action."""
    actions = " | ".join(f"--{name}" for name in _HELP)
    parser.usage = f"%(prog)s [options] ({actions})"
    add_actions(parser, _HELP)
    parser.add_argument("--topic", metavar="NAME", help="name of the topic; default for --describe: all topics")
    parser.add_argument("--if-exists", action="store_true", help="do nothing, without an error, if there is no topic")
    only = parser.add_argument_group("with --describe, at most one").add_mutually_exclusive_group()
    for name, (words, _) in FILTERS.items():
        only.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=f"show only partitions {words}")
    _add_change_arguments(
        parser.add_argument_group("with --create; the first two also with --alter, the last one with every change")
    )


def _add_change_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--partitions", type=whole_number(1), metavar="N",
        help="total after the change; default for --create: num.partitions of the controller",
    )  # fmt: skip
    group.add_argument(
        "--replica-assignment", type=assignment, metavar="1:2:3,2:3:1",
        help="brokers of each partition, the preferred leader first; --alter ignores those of existing partitions",
    )  # fmt: skip
    group.add_argument(
        "--replication-factor", type=whole_number(1), metavar="N",
        help="replicas of each partition; default: default.replication.factor of the controller",
    )  # fmt: skip
    group.add_argument(
        "--config", type=config_pair, action="append", metavar="KEY=VALUE",
        help="setting of the topic, such as min.insync.replicas=2; give the flag once for each",
    )  # fmt: skip
    group.add_argument("--if-not-exists", action="store_true", help="do nothing, without an error, if the topic exists")
    add_dry_run(group)
