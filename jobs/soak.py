"""Runs brokers, controllers and clients as processes, and makes things fail at random: it kills and freezes processes,
breaks roots, and moves partitions. Then it checks every record.

Exit status 0 if every fault was carried out, no acknowledged record was lost or doubled, readers got each record once
and in order, and all replicas are equal at the end.
"""

import argparse
from pathlib import Path

from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.progress import CourseProgress
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of
from lakelog.jobs.cli.waiting import exit_when_told
from lakelog.jobs.faults.seeded_run import Figures, add_run_options, run_seeded
from lakelog.jobs.faults.soak_figures import show_figures
from lakelog.jobs.faults.soak_plan import KINDS, kinds_of
from lakelog.jobs.faults.soak_run import SoakPlan, run_soak


def main(argv: list[str]) -> int:
    """The verb."""
    exit_when_told()
    return run(make_parser(), _soak, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("soak", __doc__)
    parser.add_argument("--minutes", type=whole_number(1), default=40, metavar="N", help="least time; default: 40")
    parser.add_argument("--faults", type=whole_number(1), default=100, metavar="N", help="how many; default: 100")
    kinds = f"kinds of faults, in turn: some of {', '.join(KINDS)}; default: all"
    parser.add_argument("--kinds", type=kinds_of, default=tuple(KINDS), metavar="KIND,KIND", help=kinds)
    add_run_options(parser)
    return parser


def _soak(args: argparse.Namespace) -> int:
    def work(folder: Path, seed: int) -> Figures:
        with CourseProgress("faults", args.faults) as report:
            return run_soak(folder, SoakPlan(args.minutes * 60, args.faults, seed, args.kinds), report)

    return run_seeded(args, "soak", work, show_figures)
