"""`lakelog kill-test`: brokers are killed at random moments while producing; then every record is looked for."""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jobs.console import FAILED, OK, parser_of, run, say, show
from jobs.kill_harness import KillPlan, run_kill_test


def main(argv: list[str]) -> int:
    """The verb."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the brokers must not outlive us
    return run(_parser(), _kill_test, argv)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("kill-test", __doc__)
    parser.add_argument("--kills", type=int, default=10, metavar="N")
    parser.add_argument("--seed", type=int, help="of the victims and the moments; default: a new one")
    parser.add_argument("--delete-checkpoints", action="store_true", help="at every kill, not at every second")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures here, as JSON")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="use this empty folder, and keep it")
    return parser


def _kill_test(args: argparse.Namespace) -> int:
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    folder = args.keep or Path(tempfile.mkdtemp(prefix="lakelog-kill-test-"))
    folder.mkdir(parents=True, exist_ok=True)
    say(f"seed {seed}, in {folder}")
    with _progress() as progress:
        task = progress.add_task("", total=args.kills + 1, acknowledged=0)
        plan = KillPlan(args.kills, seed, args.delete_checkpoints)
        figures = run_kill_test(folder, plan, lambda **now: progress.update(task, **now))
    show([{"figure": name, "value": value} for name, value in figures.items()])
    if args.out:
        args.out.write_text(json.dumps(figures, indent=2) + "\n")
    if figures["ok"] and not args.keep:
        shutil.rmtree(folder)
    return OK if figures["ok"] else FAILED


def _progress() -> Progress:
    words = (TextColumn("{task.completed} kills"), TextColumn("{task.fields[acknowledged]} acknowledged"))
    return Progress(
        BarColumn(), *words, TimeElapsedColumn(), TextColumn("{task.description}"), console=Console(stderr=True)
    )
