"""Properties on the command line, `key=value`, each flag once for each."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.options import add_command_config
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of
from lakelog.jobs.topics import config_pair
from lakelog.replication.clients.client_config import ProducerConfig
from lakelog.replication.clients.offset_lookup import EARLIEST, LATEST
from lakelog.replication.clients.producer import Producer
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.properties import Integer, Setting, ValueType

_ARGUMENTS = {"transactional.id": "name"}  # that have another name here
_PLACES = {"earliest": EARLIEST, "latest": LATEST}


class Text:
    """Any text, an empty one too."""

    def parse(self, text: str) -> str:
        """The text as it is."""
        return text

    def __str__(self) -> str:
        return "text"


class Properties(list[tuple[str, str]]):
    """Pairs of the command line. `flag` is the name of the option, as it was given."""

    flag = ""


class _AppendProperty(argparse.Action):
    def __call__(self, _parser: object, namespace: argparse.Namespace, pair: Any, option: str | None = None) -> None:
        found = Properties([*getattr(namespace, self.dest), pair])
        found.flag = option or ""
        setattr(namespace, self.dest, found)


def add_properties(parser: argparse.ArgumentParser, names: Sequence[str], what: str) -> None:
    """Adds an option that may be given several times. The names are those that Kafka has, the newest one first."""
    parser.add_argument(
        *names, dest=names[0].strip("-").replace("-", "_"), type=config_pair, action=_AppendProperty, default=[],
        metavar="KEY=VALUE", help=f"{what}; give the flag once for each",
    )  # fmt: skip


def checked(pairs: Collection[tuple[str, str]], types: Mapping[str, ValueType], flag: str) -> dict[str, Setting]:
    """The values by key. Raises InvalidConfigurationException, which lists all that is wrong, and names the option, as
    it was given, else `flag`."""
    problems, found = list[str](), dict[str, Setting]()
    for key, text in pairs:
        if key in found:
            problems.append(f"{key} is given twice")
        if key not in types:
            close = get_close_matches(key, types, n=1)
            problems.append(
                f"there is no {key}; " + (f"did you mean {close[0]}?" if close else f"known: {_all(types)}")
            )
            continue
        try:
            found[key] = types[key].parse(text)
        except (ValueError, KeyError):
            problems.append(f"{key} is {text!r}, it must be {types[key]}")
    if problems:
        raise InvalidConfigurationException(f"{flag_of(pairs, flag)}: {'; '.join(problems)}")
    return found


def flag_of(pairs: Collection[tuple[str, str]], default: str) -> str:
    """The option of the pairs, as it was given."""
    return (pairs.flag if isinstance(pairs, Properties) else "") or default


def _all(types: Mapping[str, ValueType]) -> str:
    return ", ".join(types)


KEYS: dict[str, ValueType] = {
    **{member.name.replace("_", "."): member.metadata["type"] for member in fields(ProducerConfig)},
    "acks": Text(),
    "retries": Integer(0),
    "transactional.id": Text(),
}


def add_producer_properties(parser: argparse.ArgumentParser, name: str) -> None:
    """Adds the option for the settings of the producer."""
    add_properties(parser, [name], f"setting of the producer: {', '.join(KEYS)}")


def producer_of(
    args: argparse.Namespace, pairs: list[tuple[str, str]], flag: str, given: Mapping[str, object],
    defaults: Mapping[str, object],
) -> Producer:  # fmt: skip
    """A producer with the settings `given` by flags; if a flag is None its property counts, and then the default.

    Raises InvalidConfigurationException, InvalidRequiredAcksException, and what `Producer` raises.
    """
    flags = {key: value for key, value in given.items() if value is not None}
    chosen = {**defaults, **checked(pairs, KEYS, flag), **flags}
    arguments: dict[str, Any] = {_ARGUMENTS.get(key, key.replace(".", "_")): value for key, value in chosen.items()}
    return Producer(args.cluster, config=settings(args.command_config), **arguments)


def client_parser(verb: str, description: str | None) -> VerbParser:
    """A parser with the cluster, its settings, and the topic."""
    parser = parser_of(verb, description)
    add_cluster(parser)
    add_command_config(parser, "credentials of the roots, and timeouts")
    parser.add_argument("--topic", required=True, metavar="NAME", help="name of the topic")
    return parser


def add_group(parser: argparse.ArgumentParser) -> None:
    """Adds the group whose offsets are used."""
    parser.add_argument("--group", metavar="NAME", help="go on after the offsets of this group, and commit them")


def place(text: str) -> int:
    """A type of argparse: an offset, or `EARLIEST` or `LATEST`, which are negative."""
    if text in _PLACES:
        return _PLACES[text]
    try:
        return whole_number(0, MAX_OFFSET)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither an offset, nor earliest, nor latest") from None
