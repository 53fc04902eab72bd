"""What the admin verbs have in common: the cluster, the form of the answer, and which option goes with which action."""

import argparse
import socket
from collections.abc import Collection, Iterable, Mapping

from lakelog.jobs.cli.console import JSON, TABLE, parser_of, say
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.waiting import exit_when_told
from lakelog.replication.clients.admin import AdminClient

TEXT = "text"
FORMS = (TABLE, JSON)


def admin_parser(
    verb: str, description: str | None, forms: Collection[str] = (TEXT, *FORMS)
) -> argparse.ArgumentParser:
    """A parser with what every admin verb takes; the first form is the default."""
    parser = parser_of(verb, description)
    first, note = next(iter(forms)), "text is as Kafka has it" if TEXT in forms else None
    parser.add_argument("--cluster", required=True, metavar="URI", help="root of the cluster")
    parser.add_argument("-o", "--output", choices=forms, default=first, help=note)
    parser.add_argument("--command-config", metavar="FILE", help="properties file with the credentials of the roots")
    return parser


def add_actions(parser: argparse.ArgumentParser, actions: Iterable[str]) -> None:
    """One of these has to be given; `args.action` names it."""
    group = parser.add_mutually_exclusive_group(required=True)
    for name in actions:
        group.add_argument(f"--{name}", dest="action", action="store_const", const=name)


def add_dry_run(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Every change can be tried."""
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, write nothing")


def check_options(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    goes_with: Mapping[str, Collection[str]],
    needs: Mapping[str, Collection[str]],
) -> None:
    """Ends the process as one that was called wrongly if an option is of another action, or one is missing."""
    for name, actions in goes_with.items():
        if getattr(args, name) != parser.get_default(name) and args.action not in actions:
            parser.error(f"{_flag(name)} goes with {', '.join(map(_flag, actions))} only")
    for name in needs.get(args.action, ()):
        if getattr(args, name) is None:
            parser.error(f"{_flag(args.action)} needs {_flag(name)}")


def admin_client(args: argparse.Namespace, verb: str) -> AdminClient:
    """The client; its requests are stored with who has asked."""
    return admin_client_of(args.cluster, args.command_config, verb)


def admin_client_of(cluster_uri: str, config: str | None, verb: str) -> AdminClient:
    """The client of a verb that has other options. A signal that ends the verb withdraws its request."""
    exit_when_told()
    who = f"lakelog {verb} on {socket.gethostname()}"
    return AdminClient(cluster_uri, settings(config), who, report=lambda words: say(f"lakelog: {words}"))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
