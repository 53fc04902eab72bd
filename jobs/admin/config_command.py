"""What `lakelog configs` does and prints. Kafka: `ConfigCommand`."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping

from lakelog.jobs.admin.effective_configs import (
    ALL_BROKERS,
    BROKER,
    EffectiveConfig,
    broker_settings,
    topic_settings,
)
from lakelog.jobs.admin.topic_command import check_once, config_pair, least_replicas, warn_of_min_isr
from lakelog.jobs.cli.console import OK, Row, say, show
from lakelog.jobs.cli.options import TEXT
from lakelog.jobs.cli.outcomes import show_outcomes
from lakelog.jobs.cli.settings import given_settings, settings
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.errors import BrokerNotAvailableException
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.entity import DEFAULT
from lakelog.replication.storage.cluster import Cluster

TOPICS, BROKERS = "topics", "brokers"
ENTITY_TYPES = {TOPICS: "topic", BROKERS: "broker"}

_COMMA = re.compile(r",(?![^\[]*\])")  # none between brackets


def config_pairs(text: str) -> dict[str, str]:
    """`a=1,b=[2,3]`: brackets hold together a value that has commas, as in Kafka. A key given twice is an error, unlike
    there."""
    pairs = list(map(config_pair, _COMMA.split(text)))
    check_once(key for key, _ in pairs)
    return {key: re.sub(r"^\[(.*)\]$", r"\1", value) for key, value in pairs}


def config_keys(text: str) -> list[str]:
    """`a,b`."""
    keys = text.split(",")
    check_once(keys)
    return keys


def check_entity(parser: argparse.ArgumentParser, kind: str, name: str | None) -> None:
    """Ends the process as one that was called wrongly if no topic or broker can have the name."""
    if kind == TOPICS and name == DEFAULT:
        parser.error("--entity-default goes with --entity-type brokers only")
    if kind == BROKERS and name not in (None, DEFAULT) and not re.fullmatch("[0-9]+", str(name)):
        parser.error(f"--entity-name {name!r} is not the id of a broker")


def _describe(admin: AdminClient, args: argparse.Namespace) -> int:
    if args.all:
        if not args.command_config:
            say("The properties files of brokers are not counted in: name one with --command-config.")
        found = _topics_in_full(admin, args) if args.entity_type == TOPICS else _brokers_in_full(admin, args)
        return _show("All", {name: list(map(_effective_row, configs)) for name, configs in found.items()}, args)
    dynamic = _topics(admin, args) if args.entity_type == TOPICS else _brokers(admin, args)
    return _show("Dynamic", {name: list(map(_dynamic_row, configs.items())) for name, configs in dynamic.items()}, args)


def _show(which: str, found: Mapping[str, list[Row]], args: argparse.Namespace) -> int:
    what = ENTITY_TYPES[args.entity_type]
    if args.output != TEXT:
        show([{what: name, **row} for name, rows in found.items() for row in rows], args.output)
        return OK
    for name, rows in found.items():
        say(f"{which} configs for {what} {name} are:")
        print("".join(f"{_line(row)}\n" for row in rows), end="", flush=True)
    return OK


def _line(row: Row) -> str:
    return f"  {row['key']}={row['value']}" + (f" source={row['source']}" if "source" in row else "")


def _dynamic_row(config: tuple[str, str]) -> Row:
    return {"key": config[0], "value": config[1]}


def _effective_row(config: EffectiveConfig) -> Row:
    return config._asdict()


def _topics(admin: AdminClient, args: argparse.Namespace) -> dict[str, Mapping[str, str]]:
    topics = admin.describe_topics() if args.entity_name is None else [admin.describe_topic(args.entity_name)]
    return {described.topic.topic: described.topic.configs for described in topics}


def _topics_in_full(admin: AdminClient, args: argparse.Namespace) -> dict[str, Iterable[EffectiveConfig]]:
    given, all_brokers = given_settings(args.command_config), admin.describe_broker_configs().get(DEFAULT, {})
    return {name: topic_settings(configs, all_brokers, given) for name, configs in _topics(admin, args).items()}


def _brokers(admin: AdminClient, args: argparse.Namespace) -> dict[str, Mapping[str, str]]:
    """The dynamic settings. A broker that has registered may have none. Raises BrokerNotAvailableException."""
    name, dynamic = args.entity_name, admin.describe_broker_configs()
    if name is None:
        return {**dynamic}
    known = list(map(str, admin.describe_brokers()))
    if name not in (DEFAULT, *known, *dynamic):
        raise BrokerNotAvailableException(f"no broker {name} has registered; there are: {', '.join(known) or 'none'}")
    return {name: dynamic.get(name, {})}


def _brokers_in_full(admin: AdminClient, args: argparse.Namespace) -> dict[str, Iterable[EffectiveConfig]]:
    """Of the broker that is named, else of every broker that has registered."""
    config = Cluster.open(args.cluster, settings(args.command_config)).config
    given, dynamic = given_settings(args.command_config), admin.describe_broker_configs()
    registered = {str(broker): registration for broker, registration in admin.describe_brokers().items()}
    names = registered if args.entity_name is None else _brokers(admin, args)

    def configs(name: str) -> Iterable[EffectiveConfig]:
        of_sources = {BROKER: dynamic.get(name, {}) if name != DEFAULT else {}, ALL_BROKERS: dynamic.get(DEFAULT, {})}
        return broker_settings(registered.get(name), of_sources, given, config)

    return {name: configs(name) for name in names}


def _alter(admin: AdminClient, args: argparse.Namespace) -> int:
    alter = admin.alter_configs if args.entity_type == TOPICS else admin.alter_broker_configs
    message = alter(args.entity_name, args.add_config, args.delete_config, validate_only=args.dry_run)
    if args.entity_type == TOPICS:
        warn_of_min_isr(args.add_config, args.entity_name, least_replicas(admin.describe_topic(args.entity_name)))
    return show_outcomes(ENTITY_TYPES[args.entity_type], {args.entity_name: Outcome(None, message)}, args)


ACTIONS: dict[str, Callable[[AdminClient, argparse.Namespace], int]] = {"describe": _describe, "alter": _alter}
