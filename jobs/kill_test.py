"""`lakelog kill-test`: leaders and controllers are killed while producing; then every record is looked for.

Exit status 0 if no acknowledged record was lost or doubled, no two logs contradict each other, and after every kill a
record was acknowledged within the session time-out and two seconds.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from jobs.console import FAILED, OK, parser_of, run, say
from jobs.kill_harness import KillPlan, run_kill_test
from jobs.kill_report import KillReport, show_figures
from jobs.outages import VICTIMS, victims


def main(argv: list[str]) -> int:
    """The verb."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the brokers must not outlive us
    return run(_parser(), _kill_test, argv)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("kill-test", __doc__)
    kinds = ",".join(VICTIMS)
    parser.add_argument("--victims", type=victims, default=VICTIMS, metavar="KINDS", help=f"in turn; default: {kinds}")
    parser.add_argument("--kills", type=int, default=10, metavar="N", help="of each kind; default: 10")
    parser.add_argument("--seed", type=int, help="of the leaders and the moments; default: a new one")
    parser.add_argument("--delete-checkpoints", action="store_true", help="at every kill, not at every second")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures here, as JSON")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="use this empty folder, and keep it")
    return parser


def _kill_test(args: argparse.Namespace) -> int:
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    folder = args.keep or Path(tempfile.mkdtemp(prefix="lakelog-kill-test-"))
    folder.mkdir(parents=True, exist_ok=True)
    say(f"seed {seed}, in {folder}")
    plan = KillPlan(args.victims, args.kills, seed, args.delete_checkpoints)
    with KillReport(plan.total) as report:
        figures = run_kill_test(folder, plan, report)
    show_figures(figures)
    if args.out:
        args.out.write_text(json.dumps(figures, indent=2) + "\n")
    if figures["ok"] and not args.keep:
        shutil.rmtree(folder)
    return OK if figures["ok"] else FAILED
