"""What the admin verbs have in common: the cluster, the form of the answer, and which option goes with which action."""

import argparse
import socket
from collections.abc import Collection, Mapping

from lakelog.jobs.cli.console import JSON, TABLE, say
from lakelog.jobs.cli.settings import PropertiesFile, properties_file, settings
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of
from lakelog.jobs.cli.waiting import exit_when_told
from lakelog.replication.clients.admin import AdminClient

TEXT = "text"
FORMS = (TABLE, JSON)

_FORMS = {
    TEXT: "text: as Kafka's tool prints it",
    TABLE: "table: aligned columns",
    JSON: "json: for programs, errors too",
}


def admin_parser(verb: str, description: str | None, forms: Collection[str] = (TEXT, *FORMS)) -> VerbParser:
    """A parser with what every admin verb takes; the first form is the default."""
    parser = parser_of(verb, description)
    add_cluster(parser)
    add_output(parser, forms)
    add_command_config(parser, "credentials of the roots, and timeouts")
    return parser


def add_output(parser: argparse.ArgumentParser, forms: Collection[str], default: str | None = None) -> None:
    """Adds -o; the first form is the default unless another one is named."""
    told, chosen = "; ".join(_FORMS[form] for form in forms), default or next(iter(forms))
    parser.add_argument("-o", "--output", choices=forms, default=chosen, help=f"{told}; default: {chosen}")


def add_command_config(parser: argparse.ArgumentParser, content: str) -> None:
    """Adds the properties file, which has the same name in every verb."""
    parser.add_argument("--command-config", type=properties_file, metavar="FILE", help=f"properties file: {content}")


def add_log_level(parser: argparse.ArgumentParser) -> None:
    """Adds --log-level, for the verbs that run a server."""
    parser.add_argument(
        "--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO",
        help="least level of the log lines on stderr; default: INFO",
    )  # fmt: skip


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, str]) -> None:
    """One of these has to be given; `args.action` names it. The values are their help."""
    title = "actions, of which exactly one is given"
    group = parser.add_argument_group(title).add_mutually_exclusive_group(required=True)
    for name, words in actions.items():
        group.add_argument(f"--{name}", dest="action", action="store_const", const=name, help=words)


def add_dry_run(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Every change can be tried."""
    parser.add_argument("--dry-run", action="store_true", help="show what the command would do, and write nothing")


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


def admin_client_of(cluster_uri: str, file: PropertiesFile | None, verb: str) -> AdminClient:
    """The client of a verb that has other options. A signal that ends the verb withdraws its request."""
    exit_when_told()
    who = f"lakelog {verb} on {socket.gethostname()}"
    return AdminClient(cluster_uri, settings(file), who, report=lambda words: say(f"lakelog: {words}"))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
