"""Prints a script that completes verbs, options and their values in your shell."""

import argparse
import importlib

from lakelog.jobs.cli.completion import SHELLS, words_of
from lakelog.jobs.cli.console import OK, run
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of


def main(argv: list[str]) -> int:
    """The verb."""
    return run(make_parser(), _completion, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("completion", __doc__)
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    return parser


def _completion(args: argparse.Namespace) -> int:
    from lakelog.jobs.launch.launcher import VERBS  # which starts this verb

    parsers = {name: importlib.import_module(verb.module).make_parser() for name, verb in VERBS.items()}
    print(SHELLS[args.shell]([words_of(name, VERBS[name].help, parser) for name, parser in parsers.items()]), end="")
    return OK
