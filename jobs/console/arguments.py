"""The arguments that the verbs have in common that write and read records."""

import argparse

from lakelog.jobs.cli.numbers import MAX_OFFSET, whole_number
from lakelog.jobs.cli.options import add_command_config
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of
from lakelog.replication.clients.offset_lookup import EARLIEST, LATEST

_PLACES = {"earliest": EARLIEST, "latest": LATEST}


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
