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
    from lakelog.jobs.launch.launcher import verbs_here  # which starts this verb

    found = [(name, verb.help, importlib.import_module(verb.module)) for name, verb in verbs_here().items()]
    print(SHELLS[args.shell]([words_of(name, said, module.make_parser()) for name, said, module in found]), end="")
    return OK
