"""`lakelog soak`: brokers, controllers, roots and partitions suffer at random under load; then every record is looked
for.

Exit status 0 if all faults were carried out, no acknowledged record was lost or doubled, readers were given everything
once and in order, and all replicas are equal at the end.
"""

import argparse
from pathlib import Path

from lakelog.jobs.cli.console import parser_of, run
from lakelog.jobs.cli.progress import CourseProgress
from lakelog.jobs.cli.waiting import exit_when_told
from lakelog.jobs.faults.seeded_run import Figures, add_run_options, run_seeded
from lakelog.jobs.faults.soak_figures import show_figures
from lakelog.jobs.faults.soak_plan import KINDS, kinds_of
from lakelog.jobs.faults.soak_run import SoakPlan, run_soak


def main(argv: list[str]) -> int:
    """The verb."""
    exit_when_told()
    return run(_parser(), _soak, argv)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("soak", __doc__)
    parser.add_argument("--minutes", type=_number, default=40, metavar="N", help="for so long at least; default: 40")
    parser.add_argument("--faults", type=_number, default=100, metavar="N", help="spread over them; default: 100")
    every = ",".join(KINDS)
    parser.add_argument("--kinds", type=kinds_of, default=tuple(KINDS), help=f"of faults, in turn; default: {every}")
    add_run_options(parser)
    return parser


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: it is a whole number from 1 on")
    return int(text)


def _soak(args: argparse.Namespace) -> int:
    def work(folder: Path, seed: int) -> Figures:
        with CourseProgress("faults", args.faults) as report:
            return run_soak(folder, SoakPlan(args.minutes * 60, args.faults, seed, args.kinds), report)

    return run_seeded(args, "soak", work, show_figures)
