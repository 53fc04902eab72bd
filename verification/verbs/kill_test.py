"""Kills leaders and controllers while clients produce, then checks every record.

Exit status 0 if no acknowledged record was lost or doubled, no two logs contradict each other, and after every kill a
record was acknowledged within the session time-out and two seconds.
"""

import argparse
from pathlib import Path

from lakelog.jobs.cli.console import run
from lakelog.jobs.cli.numbers import whole_number
from lakelog.jobs.cli.progress import CourseProgress
from lakelog.jobs.cli.verb_parser import VerbParser, parser_of
from lakelog.jobs.cli.waiting import exit_when_signalled
from lakelog.verification.faults.kill_harness import KillPlan, run_kill_test
from lakelog.verification.faults.kill_report import show_figures
from lakelog.verification.faults.outages import VICTIMS, victims
from lakelog.verification.faults.seeded_run import Figures, add_run_options, run_seeded


def main(argv: list[str]) -> int:
    """The verb."""
    exit_when_signalled()
    return run(make_parser(), _kill_test, argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("kill-test", __doc__)
    kinds = ",".join(VICTIMS)
    parser.add_argument(
        "--victims", type=victims, default=VICTIMS, metavar="KIND,KIND", help=f"in turn; default: {kinds}"
    )
    parser.add_argument("--kills", type=whole_number(1), default=10, metavar="N", help="kills of each; default: 10")
    parser.add_argument(
        "--delete-checkpoints",
        action="store_true",
        help="at every kill, not at every second one",
    )
    add_run_options(parser)
    return parser


def _kill_test(args: argparse.Namespace) -> int:
    def work(folder: Path, seed: int) -> Figures:
        plan = KillPlan(args.victims, args.kills, seed, args.delete_checkpoints)
        with CourseProgress("kills", plan.total) as report:
            return run_kill_test(folder, plan, report)

    return run_seeded(args, "kill-test", work, show_figures)
