"""The options that admin verbs share: the cluster, the form of the answer, and which option goes with which action."""

from __future__ import annotations

import argparse
import os
import shlex
import socket
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias

from lakelog.jobs.cli.console import HTML, JSON, TABLE, TEXT, say
from lakelog.jobs.cli.settings import PropertiesFile, properties_file, settings
from lakelog.jobs.cli.verb_parser import CLUSTER_VARIABLE, VerbParser, add_cluster, parser_of
from lakelog.jobs.cli.waiting import exit_when_signalled
from lakelog.replication.clients.admin import AdminClient

_PROGRAM_VARIABLE = "LAKELOG_PROGRAM"  # `spark-submit.sh` sets it to its own name, as it was called

FORMS = (TABLE, JSON)
MakeClient: TypeAlias = Callable[[argparse.Namespace, str], AdminClient]  # of a verb's arguments and its name

_FORMS = {
    TEXT: "text: as Kafka's tool prints it",
    TABLE: "table: aligned columns",
    JSON: "json: for programs, errors too",
    HTML: "html: one page that needs no other file",
}


class Invocation(NamedTuple):
    """How this process was called: the program, the cluster's URI (None if the environment gives it), and the
    properties file of --command-config."""

    program: str
    cluster: str | None
    command_config: str | None = None

    @classmethod
    def of(cls, given: str, uri: str, file: object = None) -> Invocation:
        """`given`: the cluster of the command line. `uri`: the same, absolute, for a command that runs elsewhere.
        `file`: the properties file, if there is one; a pipe cannot be read by another command."""
        is_default = os.environ.get(CLUSTER_VARIABLE) == given
        config = os.path.abspath(str(file)) if file is not None and os.path.isfile(str(file)) else None
        return cls(os.environ.get(_PROGRAM_VARIABLE, "lakelog"), None if is_default else uri, config)

    def command(self, verb: str, *words: object, on_cluster: bool = True) -> str:
        """A command in backquotes. `on_cluster`: whether the verb takes --cluster."""
        cluster = ("--cluster", self.cluster) if on_cluster and self.cluster is not None else ()
        config = ("--command-config", self.command_config) if self.command_config is not None else ()
        return f"`{shlex.join([self.program, verb, *map(str, (*cluster, *words, *config))])}`"


def admin_parser(verb: str, description: str | None, forms: Collection[str] = (TEXT, *FORMS)) -> VerbParser:
    """A parser with what every admin verb takes; the first form is the default."""
    parser = parser_of(verb, description)
    add_cluster(parser)
    add_output(parser, forms)
    add_command_config(parser, "credentials of the roots, and timeouts")
    return parser


def add_output(parser: argparse.ArgumentParser, forms: Collection[str], default: str | None = None) -> None:
    """Adds -o; the first form is the default unless another one is named."""
    words, chosen = "; ".join(_FORMS[form] for form in forms), default or next(iter(forms))
    parser.add_argument("-o", "--output", choices=forms, default=chosen, help=f"{words}; default: {chosen}")


def add_command_config(parser: argparse.ArgumentParser, content: str) -> None:
    """Adds the properties file, which has the same name in every verb."""
    parser.add_argument("--command-config", type=properties_file, metavar="FILE", help=f"properties file: {content}")


def add_log_level(parser: argparse.ArgumentParser) -> None:
    """Adds --log-level, for the verbs that run a server."""
    parser.add_argument(
        "--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO",
        help="least level of the log lines on stderr; default: INFO",
    )  # fmt: skip


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """Adds --log-format, for the verbs that run a server."""
    parser.add_argument(
        "--log-format", choices=(TEXT, JSON), default=TEXT,
        help="form of the log lines on stderr; json: an object a line, for programs; default: text",
    )  # fmt: skip


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, str], is_required: bool = True) -> None:
    """One of these has to be given; `args.action` names it. The values are their help. If it is not required, the verb
    itself checks that one is given, or what stands for one."""
    title = "actions, of which exactly one is given" if is_required else "actions, of which one at most is given"
    group = parser.add_argument_group(title).add_mutually_exclusive_group(required=is_required)
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
    exit_when_signalled()
    who = f"lakelog {verb} on {socket.gethostname()}"
    return AdminClient(cluster_uri, settings(file), who, report=lambda words: say(f"lakelog: {words}"))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
