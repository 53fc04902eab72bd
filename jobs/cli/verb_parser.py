"""The parser of a verb: a mistake is one sentence, and help fits a narrow terminal and ends with examples."""

import argparse
import os
import shutil
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import zip_longest
from typing import NoReturn

from lakelog.jobs.cli.console import one_line
from lakelog.jobs.cli.examples import EXAMPLES
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.storage.delta.storage_root import StorageRoot

CLUSTER_VARIABLE = "LAKELOG_CLUSTER"
_CLUSTER = "--cluster"
_MAY_BE_EMPTY = (_CLUSTER, "--command-config", "--rack")

_COLUMNS = 100
_WRONG_USAGE = 2

# Options of Kafka's tools that have no counterpart here, and the option to use in their place.
_INSTEAD = dict.fromkeys(
    ("--bootstrap-server", "--bootstrap-controller", "--broker-list", "--zookeeper"),
    f"Lakelog has no server to connect to: use --cluster URI, or set {CLUSTER_VARIABLE}",
)


class VerbParser(argparse.ArgumentParser):
    """Takes no abbreviations: those of today are ambiguous tomorrow. Nor empty values, such as those of a shell's
    variable that is not set, except where empty means that the option is not given."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong in one line, and where the options are listed."""
        words = one_line(message.removeprefix("argument "))
        self.exit(_WRONG_USAGE, f"{self.prog}: {words}; `{self.prog} --help` lists the options\n")

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def,override]
        """The arguments; --cluster may come from the environment, so argparse cannot demand it."""
        found = super().parse_args(args, namespace)
        if getattr(found, "cluster", "given") in (None, ""):
            self.error(f"--cluster URI is missing: give it, or set {CLUSTER_VARIABLE}")
        return found

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def,override]
        """An option that there is not comes before one that is missing: it may be the same, misspelled."""
        if args is not None and self._subparsers is None and not {"-h", "--help"} & set(args):
            self._check_options(args)
        return super().parse_known_args(args, namespace)

    def _check_options(self, words: Sequence[str]) -> None:
        known = [name for name in self._option_string_actions if name.startswith("--")]
        seen = set[str]()
        for word, following in zip_longest(words, words[1:]):
            name, equals, value = word.partition("=")
            if name == "--":
                return
            if name.startswith("--") and name not in known:
                self.error(f"there is no option {name}; {self._hint(name, known)}")
            action = self._option_string_actions.get(name)
            if isinstance(action, argparse._StoreAction):  # of two, argparse takes the last one in silence
                if action.dest in seen:
                    self.error(f"{name} is given twice")
                seen.add(action.dest)
            takes_a_value = name in known and self._option_string_actions[name].nargs != 0
            if takes_a_value and name not in _MAY_BE_EMPTY and (value if equals else following) == "":
                self.error(f"{name} is empty: give it a value, or leave it out")

    def _hint(self, name: str, known: Sequence[str]) -> str:
        if name in _INSTEAD and _CLUSTER in known:
            return _INSTEAD[name]
        close = get_close_matches(name.lower().replace("_", "-"), known, n=1)
        return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def parser_of(verb: str, description: str | None) -> VerbParser:
    """The parser of a verb, with its examples."""
    return VerbParser(
        f"lakelog {verb}", description=description, epilog=_examples(verb), formatter_class=_Help, allow_abbrev=False
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Adds --cluster, whose default is in the environment."""
    parser.add_argument(
        _CLUSTER, type=_cluster_uri, default=os.environ.get(CLUSTER_VARIABLE), metavar="URI",
        help=f"root of the cluster, such as /lake/cluster or s3://bucket/cluster; default: {CLUSTER_VARIABLE} of the "
        "environment",
    )  # fmt: skip


def root_uri(text: str) -> str:
    """A type of argparse: the URI of a root, as it was given."""
    try:
        StorageRoot.of(text)
    except InvalidConfigurationException as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _cluster_uri(text: str) -> str:
    """As `root_uri`; an empty one counts as missing."""
    return root_uri(text) if text else text


def _examples(verb: str) -> str:
    return "examples:\n\n" + "\n\n".join(f"  # {what}\n  {command}" for what, command in EXAMPLES[verb])


class _Help(argparse.HelpFormatter):
    """Fills paragraphs, and leaves those alone that are indented, such as examples."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(_COLUMNS, shutil.get_terminal_size().columns) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = textwrap.dedent(text).strip("\n").split("\n\n")
        return "\n\n".join(p if p.startswith(" ") else textwrap.fill(" ".join(p.split()), width) for p in paragraphs)
