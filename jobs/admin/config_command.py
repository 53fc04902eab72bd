"""What `lakelog configs` does and prints. Kafka: `ConfigCommand`."""

import argparse
import re
from collections.abc import Callable, Mapping

from lakelog.jobs.admin.topic_command import config_pair
from lakelog.jobs.cli.console import OK, say, show
from lakelog.jobs.cli.options import TEXT
from lakelog.jobs.cli.outcomes import show_outcomes
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.protocol.admin_request import Outcome

TOPICS, BROKERS = "topics", "brokers"
ENTITY_TYPES = {TOPICS: "topic", BROKERS: "broker"}

_COMMA = re.compile(r",(?![^\[]*\])")  # none between brackets


def config_pairs(text: str) -> dict[str, str]:
    """`a=1,b=[2,3]`: brackets hold together a value that has commas, as in Kafka."""
    pairs = map(config_pair, _COMMA.split(text))
    return {key: re.sub(r"^\[(.*)\]$", r"\1", value) for key, value in pairs}


def _describe(admin: AdminClient, args: argparse.Namespace) -> int:
    what, found = ENTITY_TYPES[args.entity_type], _found(admin, args)
    if args.output != TEXT:
        rows = [{what: name, "key": key, "value": configs[key]} for name, configs in found.items() for key in configs]
        show(rows, args.output)
        return OK
    for name, configs in found.items():
        say(f"Dynamic configs for {what} {name} are:")
        print("".join(f"  {key}={value}\n" for key, value in configs.items()), end="", flush=True)
    return OK


def _found(admin: AdminClient, args: argparse.Namespace) -> dict[str, Mapping[str, str]]:
    """The settings of each entity that was asked for. A broker without any is none that is unknown."""
    name = args.entity_name
    if args.entity_type == BROKERS:
        known = admin.describe_broker_configs()
        return {name: known.get(name, {})} if name else {**known}
    topics = admin.describe_topics() if name is None else [admin.describe_topic(name)]
    return {described.topic.topic: described.topic.configs for described in topics}


def _alter(admin: AdminClient, args: argparse.Namespace) -> int:
    alter = admin.alter_configs if args.entity_type == TOPICS else admin.alter_broker_configs
    message = alter(args.entity_name, args.add_config, args.delete_config, validate_only=args.dry_run)
    return show_outcomes(ENTITY_TYPES[args.entity_type], {args.entity_name: Outcome(None, message)}, args)


ACTIONS: dict[str, Callable[[AdminClient, argparse.Namespace], int]] = {"describe": _describe, "alter": _alter}
