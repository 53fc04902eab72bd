"""Describes or alters settings of topics, or of brokers while they run. The flags are those of kafka-configs.sh.

Each key and its default is in conf/server.properties. The settings in a broker's own properties file are not stored in
the cluster: name that file with --command-config, and --all counts them in. Settings that a newer version of Lakelog
has set are shown, too. Processes of this version ignore them, and --alter --delete-config removes them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from lakelog.jobs.cli.console import OK, Lines, Report, Row, run, say
from lakelog.jobs.cli.options import MakeClient, add_actions, add_dry_run, admin_client, admin_parser, check_options
from lakelog.jobs.cli.outcomes import show_outcomes
from lakelog.jobs.cli.settings import given_settings, settings
from lakelog.jobs.cli.verb_parser import VerbParser
from lakelog.jobs.topics import check_once, config_pair, least_replicas, warn_of_min_isr
from lakelog.replication.clients.admin import AdminClient
from lakelog.replication.config import CLUSTER_KEYS, KEYS, TOPIC_KEYS, Config, ConfigKey
from lakelog.replication.errors import BrokerNotAvailableException
from lakelog.replication.properties import Setting, text_of
from lakelog.replication.protocol.admin_request import Outcome
from lakelog.replication.protocol.broker_registration import BrokerRegistration
from lakelog.replication.protocol.topic import DEFAULT_NAME
from lakelog.replication.protocol.value_schema import HISTORY, shown
from lakelog.replication.storage.cluster import Cluster

_GOES_WITH = {"add_config": ("alter",), "delete_config": ("alter",), "dry_run": ("alter",), "all": ("describe",)}
_NEEDS = {"alter": ["entity_name"]}

TOPICS, BROKERS = "topics", "brokers"
ENTITY_TYPES = {TOPICS: "topic", BROKERS: "broker"}

_SIGN = re.compile(r"[\[\],]")

TOPIC, BROKER, ALL_BROKERS = "DYNAMIC_TOPIC_CONFIG", "DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG"
FILE, BUILT_IN = "STATIC_BROKER_CONFIG", "DEFAULT_CONFIG"  # Kafka's names up to here
REGISTRATION, CLUSTER = "BROKER_REGISTRATION", "CLUSTER_CONFIG"


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: carry_out(parser, args), argv)


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
        const=DEFAULT_NAME,
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


def carry_out(parser: argparse.ArgumentParser, args: argparse.Namespace, client: MakeClient = admin_client) -> int:
    """Does what the arguments ask for, and returns the status. `client` makes the client of requests."""
    check_options(parser, args, _GOES_WITH, _NEEDS)
    if args.action == "alter" and not (args.add_config or args.delete_config):
        parser.error("--alter needs --add-config or --delete-config")
    both = sorted(args.add_config.keys() & set(args.delete_config))
    if both:
        parser.error(f"--delete-config {','.join(both)}: --add-config sets it")
    check_entity(parser, args.entity_type, args.entity_name)
    return ACTIONS[args.action](client(args, "configs"), args)


def config_pairs(text: str) -> dict[str, str]:
    """Parses `a=1,b=[2,3]`: as in Kafka, a value with commas stands in brackets. Unlike in Kafka, a key given twice is
    an error. A history of schemas is a list in JSON, and needs only its own brackets."""
    try:
        pairs = list(map(config_pair, _split(text)))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; a value with commas stands in brackets: key=[value]") from None
    check_once(key for key, _ in pairs)
    return {key: value if _is_list(key, value) else re.sub(r"(?s)^\[(.*)\]$", r"\1", value) for key, value in pairs}


def _is_list(key: str, value: str) -> bool:
    return key == HISTORY and not re.match(r"\[\s*\[", value)


def _split(text: str) -> list[str]:
    """The parts between commas. A comma in brackets does not count, unless a bracket is still open at the end."""
    parts, start, depth = list[str](), 0, 0
    for found in _SIGN.finditer(text):
        depth = max(0, depth + {"[": 1, "]": -1, ",": 0}[found[0]])
        if found[0] == "," and not depth:
            parts.append(text[start : found.start()])
            start = found.end()
    return text.split(",") if depth else [*parts, text[start:]]


def config_keys(text: str) -> list[str]:
    """Parses `a,b`."""
    keys = text.split(",")
    check_once(keys)
    return keys


def check_entity(parser: argparse.ArgumentParser, kind: str, name: str | None) -> None:
    """Ends the process as after wrong usage if no topic or broker can have the name."""
    if kind == TOPICS and name == DEFAULT_NAME:
        parser.error("--entity-default goes with --entity-type brokers only")
    if kind == BROKERS and name not in (None, DEFAULT_NAME) and not re.fullmatch("[0-9]+", str(name)):
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
    text = [Lines(map(_line, rows), f"{which} configs for {what} {name} are:") for name, rows in found.items()]
    Report([{what: name, **row} for name, rows in found.items() for row in rows], text=text).show(args.output)
    return OK


def _line(row: Row) -> str:
    return f"  {row['key']}={shown(str(row['key']), str(row['value']))}" + (
        f" source={row['source']}" if "source" in row else ""
    )


def _dynamic_row(config: tuple[str, str]) -> Row:
    return {"key": config[0], "value": config[1]}


def _effective_row(config: EffectiveConfig) -> Row:
    return config._asdict()


def _topics(admin: AdminClient, args: argparse.Namespace) -> dict[str, Mapping[str, str]]:
    topics = admin.describe_topics() if args.entity_name is None else [admin.describe_topic(args.entity_name)]
    return {described.topic.topic: described.topic.configs for described in topics}


def _topics_in_full(admin: AdminClient, args: argparse.Namespace) -> dict[str, Iterable[EffectiveConfig]]:
    given, all_brokers = given_settings(args.command_config), admin.describe_broker_configs().get(DEFAULT_NAME, {})
    return {name: topic_settings(configs, all_brokers, given) for name, configs in _topics(admin, args).items()}


def _brokers(admin: AdminClient, args: argparse.Namespace) -> dict[str, Mapping[str, str]]:
    """The dynamic settings. A broker that has registered may have none. Raises BrokerNotAvailableException."""
    name, dynamic = args.entity_name, admin.describe_broker_configs()
    if name is None:
        return {**dynamic}
    known = list(map(str, admin.describe_brokers()))
    if name not in (DEFAULT_NAME, *known, *dynamic):
        raise BrokerNotAvailableException(f"no broker {name} has registered; there are: {', '.join(known) or 'none'}")
    return {name: dynamic.get(name, {})}


def _brokers_in_full(admin: AdminClient, args: argparse.Namespace) -> dict[str, Iterable[EffectiveConfig]]:
    """The settings of the named broker, else of every broker that has registered."""
    config = Cluster.open(args.cluster, settings(args.command_config)).config
    given, dynamic = given_settings(args.command_config), admin.describe_broker_configs()
    registered = {str(broker): registration for broker, registration in admin.describe_brokers().items()}
    names = registered if args.entity_name is None else _brokers(admin, args)

    def configs(name: str) -> Iterable[EffectiveConfig]:
        of_sources = {
            BROKER: dynamic.get(name, {}) if name != DEFAULT_NAME else {},
            ALL_BROKERS: dynamic.get(DEFAULT_NAME, {}),
        }
        return broker_settings(registered.get(name), of_sources, given, config)

    return {name: configs(name) for name in names}


def _alter(admin: AdminClient, args: argparse.Namespace) -> int:
    alter = admin.alter_configs if args.entity_type == TOPICS else admin.alter_broker_configs
    message = alter(args.entity_name, args.add_config, args.delete_config, validate_only=args.dry_run)
    if args.entity_type == TOPICS:
        warn_of_min_isr(args.add_config, args.entity_name, least_replicas(admin.describe_topic(args.entity_name)))
    return show_outcomes(ENTITY_TYPES[args.entity_type], {args.entity_name: Outcome(None, message)}, args)


ACTIONS: dict[str, Callable[[AdminClient, argparse.Namespace], int]] = {"describe": _describe, "alter": _alter}


class EffectiveConfig(NamedTuple):
    """A setting with the value that holds, and its source."""

    key: str
    value: str
    source: str


def topic_settings(
    configs: Mapping[str, str], all_brokers: Mapping[str, str], given: Mapping[str, Setting]
) -> Iterator[EffectiveConfig]:  # fmt: skip
    """The settings of a topic: its own, else the brokers' defaults for topics. `all_brokers`: the dynamic settings of
    all brokers. `given`: those of a properties file."""
    for name, key in TOPIC_KEYS.items():
        broker_name = key.field.replace("_", ".")
        if name in configs:
            yield EffectiveConfig(name, configs[name], TOPIC)
        elif broker_name in all_brokers:
            yield EffectiveConfig(name, all_brokers[broker_name], ALL_BROKERS)
        else:
            yield EffectiveConfig(name, *_static(key, given))
    for name in sorted(configs.keys() - TOPIC_KEYS.keys()):  # a newer version has set it
        yield EffectiveConfig(name, configs[name], TOPIC)


def broker_settings(
    registration: BrokerRegistration | None, dynamic: Mapping[str, Mapping[str, str]], given: Mapping[str, Setting],
    config: Config,
) -> Iterator[EffectiveConfig]:  # fmt: skip
    """The settings of a broker. `dynamic`: its dynamic settings by source, the first source counting most. Without a
    registration these are the settings of a new broker."""
    registered = {} if registration is None else {"broker.id": registration.broker_id, "broker.rack": registration.rack}
    # Of two sources the first one holds. A newer version may have set what this one does not know.
    set_by = {name: source for source in reversed([*dynamic]) for name in dynamic[source]}
    for name, key in KEYS.items():
        if name in set_by:
            yield EffectiveConfig(name, dynamic[set_by[name]][name], set_by[name])
        elif name in registered:
            yield EffectiveConfig(name, text_of(registered[name]), REGISTRATION)
        else:
            source = CLUSTER if name in CLUSTER_KEYS else _static(key, given)[1]
            yield EffectiveConfig(name, text_of(getattr(config, key.field)), source)
    for name in sorted(set_by.keys() - KEYS.keys()):
        yield EffectiveConfig(name, dynamic[set_by[name]][name], set_by[name])


def _static(key: ConfigKey, given: Mapping[str, Setting]) -> tuple[str, str]:
    """The value and the source of a setting without a dynamic value. A topic's key may have another name in a
    properties file: that of its field."""
    name = key.field.replace("_", ".")
    return (given[name].value, FILE) if name in given else (text_of(key.default), BUILT_IN)
