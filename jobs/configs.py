"""`lakelog configs`: describes or alters the settings of topics. The flags are those of kafka-configs.sh."""

import argparse

from jobs.admin_options import TEXT, add_actions, add_dry_run, admin_client, admin_parser, check_options
from jobs.console import OK, run, say, show
from jobs.outcomes import show_outcomes
from jobs.topic_command import config_pair
from replication.clients.admin import AdminClient
from replication.storage.admin_table import Outcome

_GOES_WITH = {"add_config": ("alter",), "delete_config": ("alter",), "dry_run": ("alter",)}
_NEEDS = {"alter": ["entity_name"]}


def main(argv: list[str]) -> int:
    """The verb."""
    parser = _parser()
    return run(parser, lambda args: _configs(parser, args), argv)


def _parser() -> argparse.ArgumentParser:
    parser = admin_parser("configs", __doc__)
    add_actions(parser, ("describe", "alter"))
    parser.add_argument("--entity-type", required=True, choices=["topics"])
    parser.add_argument("--entity-name", metavar="NAME", help="the topic; --describe without it describes all")
    parser.add_argument("--add-config", type=_pairs, default={}, metavar="KEY=VALUE,KEY=VALUE")
    parser.add_argument("--delete-config", type=lambda text: text.split(","), default=[], metavar="KEY,KEY")
    add_dry_run(parser)
    return parser


def _pairs(text: str) -> dict[str, str]:
    return dict(map(config_pair, text.split(",")))


def _configs(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    check_options(parser, args, _GOES_WITH, _NEEDS)
    if args.action == "alter" and not (args.add_config or args.delete_config):
        parser.error("--alter needs --add-config or --delete-config")
    return (_describe if args.action == "describe" else _alter)(admin_client(args, "configs"), args)


def _describe(admin: AdminClient, args: argparse.Namespace) -> int:
    found = admin.describe_topics() if args.entity_name is None else [admin.describe_topic(args.entity_name)]
    topics = [described.topic for described in found]
    if args.output != TEXT:
        show(
            [{"topic": t.topic, "key": key, "value": t.configs[key]} for t in topics for key in t.configs], args.output
        )
        return OK
    for topic in topics:
        say(f"Dynamic configs for topic {topic.topic} are:")
        print("".join(f"  {key}={value}\n" for key, value in topic.configs.items()), end="", flush=True)
    return OK


def _alter(admin: AdminClient, args: argparse.Namespace) -> int:
    message = admin.alter_configs(args.entity_name, args.add_config, args.delete_config, validate_only=args.dry_run)
    return show_outcomes("topic", {args.entity_name: Outcome(None, message)}, args)
