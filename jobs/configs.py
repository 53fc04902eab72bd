"""Describes or alters settings of topics, or of brokers while they run. The flags are those of kafka-configs.sh.

Each key and its default is in conf/server.properties. The settings in a broker's own properties file are not stored in
the cluster: name that file with --command-config, and --all counts them in.
"""

import argparse

from lakelog.jobs.admin.config_command import ACTIONS, ENTITY_TYPES, check_entity, config_keys, config_pairs
from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.options import add_actions, add_dry_run, admin_client, admin_parser, check_options
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.replication.protocol.entity import DEFAULT

_GOES_WITH = {"add_config": ("alter",), "delete_config": ("alter",), "dry_run": ("alter",), "all": ("describe",)}
_NEEDS = {"alter": ["entity_name"]}


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _configs(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = admin_parser("configs", __doc__)
    add_actions(parser, {"describe": "show settings", "alter": "set or remove settings"})
    parser.add_argument("--entity-type", required=True, choices=ENTITY_TYPES, help="whose settings these are")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--entity-name", metavar="NAME", help="the topic, or the id of the broker; --describe without it describes all"
    )
    which.add_argument(
        "--entity-default",
        dest="entity_name",
        action="store_const",
        const=DEFAULT,
        help="all brokers",
    )
    parser.add_argument(
        "--add-config", type=config_pairs, default={}, metavar="KEY=VALUE,KEY=[VALUE,VALUE]",
        help="for --alter: set these; a value with commas stands in brackets",
    )  # fmt: skip
    parser.add_argument(
        "--delete-config", type=config_keys, default=[], metavar="KEY,KEY",
        help="for --alter: remove these, so that their defaults hold",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="for --describe: every setting, and where it comes from")
    add_dry_run(parser)
    return parser


def _configs(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    check_options(parser, args, _GOES_WITH, _NEEDS)
    if args.action == "alter" and not (args.add_config or args.delete_config):
        parser.error("--alter needs --add-config or --delete-config")
    both = sorted(args.add_config.keys() & set(args.delete_config))
    if both:
        parser.error(f"--delete-config {','.join(both)}: --add-config sets it")
    check_entity(parser, args.entity_type, args.entity_name)
    return ACTIONS[args.action](admin_client(args, "configs"), args)
